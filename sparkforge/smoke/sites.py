"""Places where a server can run, and servers that were started there, as smoke sees them."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

LOOPBACK = "127.0.0.1"
REQUEST = "request.json"
"""Name of the file in which the regret reference finds what it is asked."""
_FAULT = re.compile(
    r"Traceback \(most recent call last\)|\b(?:ERROR|CRITICAL)\b|Fatal Python error|Segmentation fault|terminate called"
)
# The process that speaks HTTP: it also traces requests that it refuses, and it is the last to learn of a fault.
_SPEAKER = re.compile(r"(?:\x1b\[[0-9;]*m)*\(APIServer pid=\d+\)")
_WIDTH = 400  # an engine that ends says its whole configuration in a line


class Server(Protocol):
    """A server that was started."""

    @property
    def base(self) -> str:
        """Its address, http://host:port."""

    @property
    def model(self) -> str:
        """The model's directory, as the server sees it."""

    def alive(self) -> bool:
        """Whether its first process still runs."""

    def logs(self) -> str:
        """Everything that it wrote so far."""

    def reference(self, request: bytes) -> bytes:
        """Run the regret reference with the server's own Python."""

    def unwritten(self) -> str:
        """Why its fresh volume for caches stayed empty; an empty string if it did not, or there is none."""

    def stop(self, *, grace: float) -> int | None:
        """SIGTERM; the exit status, or None when something of it still ran after `grace` seconds (killed then)."""

    def remove(self) -> None:
        """Remove it and all that it left on this machine. Twice is no error."""


class Site(Protocol):
    """A place that can start servers."""

    @property
    def subject(self) -> str:
        """Image or virtual environment, for people."""

    @property
    def users(self) -> bool:
        """Whether a server can be started as another user."""

    def start(self, model: Path, flags: Sequence[str], env: Mapping[str, str], *, user: str | None) -> Server:
        """Start `vllm serve` on a model with these flags; host and port are the site's business."""


def free_port() -> int:
    """A TCP port on which nothing of this machine listens now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def last_lines(log: str, count: int = 40) -> str:
    """The end of a server's log, and before it the first fault of an engine or a worker, up to `count` lines of each.

    When an engine ends, every open request is traced after it, which pushes the cause out of the last lines.
    """
    lines = [line if len(line) <= _WIDTH else f"{line[:_WIDTH]} ..." for line in log.rstrip().splitlines()]
    last = max(0, len(lines) - count)
    faults = (place for place in range(last) if _FAULT.search(lines[place]) and not _SPEAKER.match(lines[place]))
    first = next(faults, last)
    end = min(first + count, last)
    left = [f"[{last - end} lines left out]"] if last > end else []
    return "\n".join([*lines[first:end], *left, *lines[last:]])
