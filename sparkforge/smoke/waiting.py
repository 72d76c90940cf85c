"""Wait for a server's first token, and say meanwhile what it does."""

from __future__ import annotations

import re
import time

from sparkforge.core.console import say
from sparkforge.core.errors import CheckFailed
from sparkforge.smoke.checks import PROMPT
from sparkforge.smoke.client import Client, NoReply
from sparkforge.smoke.sites import Server, last_lines

_POLL_SECONDS = 0.25
_NEWS_SECONDS = 15.0
_NEWS_LENGTH = 120
# What vLLM puts in front of what it says: "(EngineCore pid=79) ", then "INFO 11-20 13:44:54 [core.py:306] ".
_WHO = re.compile(r"^\([^()]* pid=\d+\) ?")
_WHEN = re.compile(r"^(?:DEBUG|INFO|ERROR|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\] ?)?")
# No news: `WARNING ...` of vLLM, `W1120 13:44:06.57 8820 ...` of torch, and what a process of vLLM says every minute
# while it waits for another one.
_ADVICE = re.compile(r"^(?:WARNING\b|\[?W\d{4} |No available shared memory broadcast block)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WORD = re.compile(r"[A-Za-z]{3}")  # a banner of blocks and an empty line behind a process's name have none


def first_token(server: Server, name: str, begun: float, bound: float) -> tuple[str, dict[str, float]]:
    """Ask for a stream until one comes; what was seen, and the seconds since the start.

    Args:
        server: that was started.
        name: of the model that it serves.
        begun: when it was started, of the monotonic clock.
        bound: seconds that it has since then.

    Raises:
        CheckFailed: it has ended, or answers with something else, or was silent for too long.
    """
    told = begun
    while True:
        left = begun + bound - time.monotonic()
        if left <= 0:
            raise CheckFailed(f"no token within {bound:.0f} s of the start")
        asked = time.monotonic()
        try:
            # The first request may compile kernels: it may be silent for as long as the start may take.
            made = Client(server.base, name, timeout=left).stream(PROMPT, 2)
        except NoReply as silent:
            if not server.alive():
                raise CheckFailed(
                    "the server ended before its first token", why=last_lines(server.logs(), 5)
                ) from silent
        else:
            seconds = asked + made.chunks[0] - begun
            return f"first streamed token {seconds:.1f} s after the start", {"seconds": seconds}
        if time.monotonic() - told > _NEWS_SECONDS:
            told = time.monotonic()
            say(f"    {told - begun:.0f} s: {news(server.logs())}")
        time.sleep(_POLL_SECONDS)


def news(log: str) -> str:
    """The last line of a log that tells of work, without process, time and source line."""
    for line in reversed(log.splitlines()):
        said = _WHEN.sub("", _WHO.sub("", _COLOUR.sub("", line))).strip()
        if _WORD.search(said) and not _ADVICE.match(said):
            return said if len(said) <= _NEWS_LENGTH else f"{said[:_NEWS_LENGTH]} ..."
    return "it says nothing yet"
