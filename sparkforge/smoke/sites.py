"""What smoke asks of a place where a server can run, and of the server that was started there."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from sparkforge.proc import tail

LOOPBACK = "127.0.0.1"
REQUEST = "request.json"
"""Name of the file in which the regret reference finds what it is asked."""


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
        """Why its fresh volume for caches stayed unused; empty when it was used, or there is none."""

    def stop(self, *, grace: float) -> int | None:
        """SIGTERM; the exit status, or None when something of it still ran after `grace` seconds (killed then)."""

    def remove(self) -> None:
        """Remove it and all that it left on this machine. Twice is no error."""


class Site(Protocol):
    """A place that can start servers."""

    @property
    def subject(self) -> str:
        """What is being looked at, for people."""

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
    """End of a server's log, for people."""
    return tail(log.encode(), count)
