"""Greedy tokens of a server, judged by what they lose in transformers' logits.

On random weights two right servers may give different greedy tokens: logits lie close, and bf16 sums in another order
prefer another token now and then; from there on the replies differ. Regret stays comparable: given the prefix that the
server had, how much less than its best logit does the reference give to the token that the server chose? It is zero
where both agree, small at near-ties, and large where the server computes something else.

The limits are logits of the tiny model, whose logits spread by 2.6 (its generator sees to that). Measured on 6
seeds with 1600 random tokens each, transformers in bf16 against transformers in fp32 loses 0.004 to 0.007 a
token, less than 0.6 at 999 tokens of 1000, and 1.7 at the worst: a router's near tie, decided the other way, swaps
an expert. Of the faults planted on the same seeds (sinks lost in one layer, an expert less for each token, a
window one token short, a bias lost, experts or heads shuffled), the least loses 0.08 a token and most lose 0.3 to
5; a token drawn blindly loses 7.7, three spreads. So the limit of the mean stands at four times the noise and at
two fifths of the smallest fault, and that of one token between the worst of noise and a blind one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from sparkforge.core.errors import CheckFailed
from sparkforge.core.paths import IMAGES
from sparkforge.smoke.checks import Check, check
from sparkforge.smoke.client import Client

REFERENCE = IMAGES / "checks" / "regret_reference.py"
PROMPTS = (
    "The smith looks at the metal and",
    # Several times the window of the tiny model, so that layers with a window and without one differ.
    "A forge heats the iron, the hammer shapes it, the anvil holds it, and the water makes it hard. When the "
    "work is done the smith writes down the weight, the time and the heat. " * 3,
)


@dataclass(frozen=True)
class Limits:
    """How much a server may lose, in logits of the reference, and how many tokens make the claim.

    Attributes:
        mean: of all tokens.
        most: of any one token.
        tokens: generated after each prompt.
    """

    mean: float = 0.03
    most: float = 4.0
    tokens: int = 96


class _Scored(msgspec.Struct, frozen=True):
    regret: list[float]
    floor: list[float]
    spread: list[float]


class _Answer(msgspec.Struct, frozen=True):
    sequences: list[_Scored]
    versions: dict[str, str]


Ask = Callable[[bytes], bytes]
"""Runs the reference script where the server's Python is: what it is asked to what it printed."""


def regret(client: Client, ask: Ask, *, model: str, limits: Limits | None = None) -> Check:
    """The server's greedy tokens lose little against transformers' own logits.

    Args:
        client: of the server.
        ask: runs the reference script.
        model: directory of the weights, as the reference script sees it.
        limits: how much may be lost; None takes those of the tiny model.
    """
    bounds = limits or Limits()

    def look() -> tuple[str, dict[str, float]]:
        sequences = [generated(client, prompt, bounds.tokens) for prompt in PROMPTS]
        asked = msgspec.json.encode({"model": model, "sequences": sequences})
        return judged(answer(ask(asked), sequences), bounds)

    return check("regret", look)


def generated(client: Client, prompt: str, tokens: int) -> dict[str, list[int]]:
    """Ids of a prompt and of the greedy tokens after it.

    Raises:
        CheckFailed: the server does not give token ids.
    """
    made = client.complete(prompt, tokens)
    if not made.tokens or not made.prompt:
        raise CheckFailed("the server gives no token ids", why="`return_token_ids` was asked for")
    return {"prompt": list(made.prompt), "generated": list(made.tokens)}


def answer(said: bytes, sequences: Sequence[dict[str, list[int]]]) -> _Answer:
    """The reference script's answer, from the last line of what it printed.

    Raises:
        CheckFailed: it is no answer to what was asked.
    """
    last = said.rstrip().rpartition(b"\n")[2]
    try:
        found = msgspec.json.decode(last, type=_Answer)
    except msgspec.DecodeError as wrong:
        raise CheckFailed("the reference gave no answer", why=f"{wrong}: {last[:300]!r}") from wrong
    sizes = [(len(one["generated"]),) * 3 for one in sequences]
    if [(len(one.regret), len(one.floor), len(one.spread)) for one in found.sequences] != sizes:
        raise CheckFailed("the reference scored something else than what was generated")
    return found


def judged(found: _Answer, limits: Limits) -> tuple[str, dict[str, float]]:
    """What the answer says and its numbers.

    Raises:
        CheckFailed: more is lost than the limits allow, or a score is no number.
    """
    lost = [value for one in found.sequences for value in one.regret]
    floor = [value for one in found.sequences for value in one.floor]
    numbers = {
        "tokens": len(lost),
        "differing_tokens": sum(value > 0 for value in lost),
        "mean_logits": fmean(lost),
        "max_logits": max(lost),
        "bf16_mean_logits": fmean(floor),
        "bf16_max_logits": max(floor),
        "spread_logits": fmean(value for one in found.sequences for value in one.spread),
    }
    said = (
        f"{len(lost)} tokens held against transformers' choice: {numbers['mean_logits']:.4f} logits lost a token, "
        f"{numbers['max_logits']:.3f} at most (allowed {limits.mean} and {limits.most}; rounding to bf16 alone loses "
        f"{numbers['bf16_mean_logits']:.4f} and {numbers['bf16_max_logits']:.3f})"
    )
    # Written so that NaN fails.
    if not (numbers["mean_logits"] <= limits.mean and numbers["max_logits"] <= limits.most):
        versions = ", ".join(f"{name} {version}" for name, version in sorted(found.versions.items()))
        raise CheckFailed("the tokens are not those of the model", why=f"{said}; reference: {versions}")
    return said, numbers
