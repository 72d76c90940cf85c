"""The checks of a server, each a function that ends in a verdict."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from sparkforge.core.errors import CheckFailed
from sparkforge.smoke.client import Client, Completion

# Fewer tokens than a block of the prefix cache (16): a repeated prompt is then computed again, in the same order, and
# must give the same tokens. A prompt from the cache is summed in another order, and may give others at near-ties.
PROMPT = "The smith looks at the metal and"
_RENDERED = "<|start|>user<|message|>{}<|end|><|start|>assistant"  # by the chat template of the tiny model
_BLOCK = 16
_REPEATS = 3
# vLLM catches SIGTERM, shuts its engine down and ends with 0. Another status means that its children were lost.
_CLEAN = 0
_TRACEBACK = re.compile(r"^.*Traceback \(most recent call last\):", re.MULTILINE)


class CheckVerdict(StrEnum):
    """Outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One verdict on a server.

    Attributes:
        name: of the check.
        verdict: its outcome.
        said: the fact behind the verdict, for people.
        numbers: what was measured, by name; the unit is part of the name.
    """

    name: str
    verdict: CheckVerdict
    said: str
    numbers: dict[str, float] = field(default_factory=dict)


def check(name: str, look: Callable[[], tuple[str, dict[str, float]]]) -> Check:
    """Run a function that returns what it saw or raises `CheckFailed`; the verdict."""
    try:
        said, numbers = look()
    except CheckFailed as failed:
        return Check(name, CheckVerdict.FAILED, str(failed))
    return Check(name, CheckVerdict.PASSED, said, numbers)


def whole(client: Client, tokens: int) -> Check:
    """A completion in one reply has text, a finish reason and the tokens that were asked for."""

    def look() -> tuple[str, dict[str, float]]:
        made = client.complete(PROMPT, tokens)
        counted = count(made, tokens)
        return f"{counted} tokens in one reply", {"tokens": counted, "seconds": made.chunks[-1]}

    return check("completion", look)


def streamed(client: Client, tokens: int) -> Check:
    """A streamed completion comes in pieces, ends properly and says what the one in one reply says."""

    def look() -> tuple[str, dict[str, float]]:
        made = client.stream(PROMPT, tokens)
        counted = count(made, tokens)
        if len(made.chunks) < min(tokens, 2):
            raise CheckFailed("the stream came in one piece", why=f"{tokens} tokens were asked for")
        same(client.complete(PROMPT, tokens), made, "the streamed completion")
        numbers = {"tokens": counted, "pieces": len(made.chunks), "first_token_seconds": made.chunks[0]}
        return f"{counted} tokens in {len(made.chunks)} pieces, the same text as in one reply", numbers

    return check("stream", look)


def chatted(client: Client, tokens: int) -> Check:
    """A chat answers with the tokens that were asked for, and the model gets the prompt that its template makes."""

    def look() -> tuple[str, dict[str, float]]:
        made = client.chat(PROMPT, tokens)
        counted = count(made, tokens)
        plain = client.complete(_RENDERED.format(PROMPT), 1).usage
        if plain is None or made.usage is None or plain.prompt_tokens != made.usage.prompt_tokens:
            raise CheckFailed("a chat whose prompt is not what the template makes", why=f"{made.usage}, {plain}")
        return f"{counted} tokens of a chat", {"tokens": counted}

    return check("chat", look)


def repeated(client: Client, tokens: int) -> Check:
    """At temperature 0 the same prompt gives the same tokens."""

    def look() -> tuple[str, dict[str, float]]:
        first = client.complete(PROMPT, tokens)
        for turn in range(2, _REPEATS + 1):
            same(first, client.complete(PROMPT, tokens), f"repetition {turn} at temperature 0")
        if first.usage and first.usage.prompt_tokens >= _BLOCK:
            raise CheckFailed(
                f"a prompt of {first.usage.prompt_tokens} tokens is too long to show determinism",
                why=f"from {_BLOCK} on it may come from the prefix cache",
            )
        return f"{_REPEATS} times the same {tokens} tokens", {"repetitions": _REPEATS}

    return check("deterministic", look)


def count(made: Completion, tokens: int) -> int:
    """Tokens of a completion from its `usage`, compared with every other count in the reply.

    Raises:
        CheckFailed: there is no usage, or something disagrees with it.
    """
    usage = made.usage
    if usage is None:
        raise CheckFailed("a completion without `usage`")
    if usage.completion_tokens != tokens:
        raise CheckFailed(f"usage counts {usage.completion_tokens} tokens", why=f"{tokens} were asked for")
    if usage.prompt_tokens < 1 or usage.total_tokens != usage.prompt_tokens + usage.completion_tokens:
        raise CheckFailed("usage does not add up", why=str(usage))
    if made.tokens and len(made.tokens) != usage.completion_tokens:
        raise CheckFailed(f"usage counts {usage.completion_tokens} tokens", why=f"{len(made.tokens)} ids came")
    if made.prompt and len(made.prompt) != usage.prompt_tokens:
        raise CheckFailed(f"usage counts {usage.prompt_tokens} tokens of prompt", why=f"{len(made.prompt)} ids came")
    if made.finish != "length":
        raise CheckFailed(f"finish reason {made.finish!r}", why="`max_tokens` ends it: the reason is 'length'")
    if not made.text:
        raise CheckFailed("a completion without text", why=f"{tokens} tokens were counted")
    return usage.completion_tokens


def same(one: Completion, other: Completion, what: str) -> None:
    """Compare two completions.

    Raises:
        CheckFailed: text or tokens differ; names the first place.
    """
    pairs = enumerate(zip(one.tokens, other.tokens, strict=False))
    place = next((place for place, (left, right) in pairs if left != right), None)
    if place is not None:
        raise CheckFailed(
            f"{what} differs from the first", why=f"token {place} is {other.tokens[place]}, it was {one.tokens[place]}"
        )
    if one.text != other.text or len(one.tokens) != len(other.tokens):
        raise CheckFailed(f"{what} differs from the first", why=f"{other.text[:60]!r} instead of {one.text[:60]!r}")


def kept(unwritten: str) -> Check:
    """What the server compiles and fetches is kept on its volume, whichever user it runs as."""

    def look() -> tuple[str, dict[str, float]]:
        if unwritten:
            raise CheckFailed("caches are not kept on the volume", why=unwritten)
        return "caches are on the fresh volume", {}

    return check("volume", look)


def stopped(code: int | None, seconds: float, log: str, *, bound: float) -> Check:
    """After SIGTERM the server is gone in time, with status 0 and without a traceback in its log.

    Args:
        code: exit status; None if it was still there after `bound`.
        seconds: from the signal to the end.
        log: all that the server wrote.
        bound: seconds that it has.
    """

    def look() -> tuple[str, dict[str, float]]:
        if code is None:
            raise CheckFailed(f"still there {bound:.0f} s after SIGTERM")
        if code != _CLEAN:
            raise CheckFailed(f"ended with status {code} after SIGTERM", why="a clean shutdown ends with 0")
        found = _TRACEBACK.search(log)
        if found:
            raise CheckFailed("a traceback in the log", why=log[found.start() :][:1500])
        return f"gone {seconds:.1f} s after SIGTERM, status {code}", {"seconds": seconds}

    return check("shutdown", look)
