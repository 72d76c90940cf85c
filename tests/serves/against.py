"""One server against another: the same model, the same requests, the same answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import asks
from alike import difference
from answers import Answer, Asker
from asks import Ask, Step

from sparkforge.core.console import say
from sparkforge.core.errors import CheckFailed
from sparkforge.smoke.checks import Check, check
from sparkforge.smoke.run import ENV, NAME, TINY_FLAGS, Bounds
from sparkforge.smoke.sites import Server, Site, last_lines
from sparkforge.smoke.waiting import first_token

_BROKEN = 500  # no request may meet an error of the server's own
Taken = list[tuple[Ask, Answer]]
# Fewer tokens in a pass than smoke has: the first pass is the longest part of a start on one core.
_BATCH = "--max-num-batched-tokens="
_FLAGS = (*(flag for flag in TINY_FLAGS if not flag.startswith(_BATCH)), f"{_BATCH}64")
# One thread for each server, bound to no core: the order of sums then does not depend on how many cores are free.
_ALONE = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def taken(
    site: Site,
    model: Path,
    *,
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    steps: Callable[[str], Iterable[Step]] = asks.steps,
    bounds: Bounds | None = None,
) -> Taken:
    """Start a server on a tiny model, ask it, stop it; its answers.

    Args:
        site: where it starts.
        model: directory of a tiny model.
        flags: more words for `vllm serve`.
        env: more variables for it.
        steps: the requests, a function of the model's name.
        bounds: how long things may take.

    Raises:
        CheckFailed: it does not start, does not answer a request, or answers with an error of its own.
    """
    limits = bounds or Bounds()
    words = [f"--served-model-name={NAME}", *_FLAGS, *flags]
    begun = time.monotonic()
    say(f"  starting {site.subject}, first token within {limits.start:.0f} s ...")
    server = site.start(model, words, {**ENV, **asks.ENV, **_ALONE, **(env or {})}, user=None)
    try:
        return _asked(server, site.subject, begun, limits, steps)
    except CheckFailed as failed:
        raise CheckFailed(failed.what, why=f"{failed.why}\n{last_lines(server.logs(), 80)}", do=failed.do) from failed
    finally:
        server.remove()


def _asked(server: Server, subject: str, begun: float, limits: Bounds, steps: Callable[[str], Iterable[Step]]) -> Taken:
    said, _ = first_token(server, NAME, begun, limits.start)
    say(f"    {said}")
    found = Asker(server.base).take(steps(NAME))
    say(f"    {len(found)} answers {time.monotonic() - begun:.1f} s after the start")
    broken = [f"{ask.name}: {answer.body}" for ask, answer in found if answer.status == _BROKEN]
    if broken or not server.alive():
        raise CheckFailed(f"{subject} broke under these requests", why="\n".join(broken) or "it has ended")
    return found


def compared(one: Taken, other: Taken) -> tuple[Check, ...]:
    """A verdict on each request."""
    return tuple(_verdicts(one, other))


def _verdicts(one: Taken, other: Taken) -> Iterator[Check]:
    for (ask, left), (asked, right) in zip(one, other, strict=True):
        if ask != asked:
            raise CheckFailed("two servers were asked different things", why=f"{ask.name}, {asked.name}")

        def look(ask: Ask = ask, left: Answer = left, right: Answer = right) -> tuple[str, dict[str, float]]:
            parted = difference(ask, left, right)
            if parted:
                raise CheckFailed("the answers differ", why=parted)
            return f"status {left.status}, {'the same form' if ask.loose else 'equal'}", {}

        yield check(ask.name, look)
