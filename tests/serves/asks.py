"""What two servers of one model are asked, to see whether they answer alike.

A step is what is under way at one time. Which requests share a forward pass decides in what order bf16 numbers are
added up, and so the last bits of logits, even on a CPU. A step of one sequence leaves no choice. A step of several
is *held*: the engine is paused, the requests are queued one by one, and then it goes on, so that both servers see
the same batches. One step is not held, as requests of real users are not; of it only what cannot depend on batches
is compared (`Ask.loose`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sparkforge.smoke.regret import PROMPTS

ENV = {"VLLM_SERVER_DEV_MODE": "1"}  # for /pause and /resume
MODEL_LENGTH = 1024  # tokens, as smoke serves the tiny model
_SHORT, _LONG = PROMPTS
_LONGER = _LONG * 5  # some 600 tokens: twenty windows of the tiny model, several steps of chunked prefill
_OTHERS = (
    "A series of small blows in the right order",
    "white throws sparks, red is too cold and yellow",
    "Then the fire is banked for the night, the tongs hang on the wall, and the next day begins",
    "number 42: é, 漢字 and \u0000 are bytes too",
)
# Where a prompt is divided, vLLM 0.21.0 turns the generator of a request with a seed back to before the token that
# nobody takes (`_bookkeeping_sync` of v1/worker/gpu_model_runner.py), by an offset that the generators of a CPU do not
# have: the engine ends. So a prompt with a seed has to fit into one pass: what is not cached of it when it comes alone,
# with what is queued before it when it is held. Where others come as they like, only one token cannot be divided.
_UNDIVIDED = [72]


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        name: for people.
        path: behind the server's address.
        body: what is posted as JSON; bytes are posted as they are, None is a GET.
        loose: compare only what does not depend on which requests shared a batch.
    """

    name: str
    path: str
    body: object = None
    loose: bool = False

    @property
    def streamed(self) -> bool:
        """Whether the answer comes as events."""
        return isinstance(self.body, dict) and self.body.get("stream") is True


@dataclass(frozen=True)
class Step:
    """Requests under way at one time.

    Attributes:
        asks: in the order in which they are sent.
        held: queue them all before the engine takes the first.
    """

    asks: tuple[Ask, ...]
    held: bool = False


def steps(model: str) -> Iterator[Step]:
    """All that is asked, in order: a server's prefix cache makes later answers depend on earlier requests.

    Args:
        model: name under which it is served.
    """
    for ask in (*_plain(), *_completions(model), *_chats(model), *_errors(model)):
        yield Step((ask,))
    yield Step((_completion(model, "three of one prompt", _SHORT, n=3, temperature=0.9, seed=7),), held=True)
    yield Step((_completion(model, "four prompts in one request", list(_OTHERS)),), held=True)
    yield Step(tuple(_together(model, "held")), held=True)
    yield Step(tuple(_together(model, "at once", loose=True)))


def quick(model: str) -> Iterator[Step]:
    """The first few of them that show whether a server answers, and whether it computes the same."""
    names = {"models", "greedy", "unknown model"}
    return (step for step in steps(model) if names >= {ask.name for ask in step.asks})


def _plain() -> Iterator[Ask]:
    for name, path in (("models", "/v1/models"), ("version", "/version"), ("interface", "/openapi.json")):
        yield Ask(name, path)
    yield Ask("tokenize", "/tokenize", {"prompt": _OTHERS[-1], "return_token_strs": True})
    messages = [{"role": "user", "content": _OTHERS[0]}]
    yield Ask("tokenize a chat", "/tokenize", {"messages": messages, "add_generation_prompt": True})
    yield Ask("detokenize", "/detokenize", {"tokens": [72, 300, 301, 511, 5]})


def _completion(model: str, name: str, prompt: object, *, loose: bool = False, **more: Any) -> Ask:
    body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 5, "ignore_eos": True}
    return Ask(name, "/v1/completions", {**body, "return_token_ids": True, **more}, loose)


def _completions(model: str) -> Iterator[Ask]:
    counted: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    yield _completion(model, "greedy", _SHORT, max_tokens=64)
    yield _completion(model, "greedy, streamed", _SHORT, max_tokens=64, **counted)
    yield _completion(model, "prompt over many windows", _LONGER)
    yield _completion(model, "the same from the prefix cache", _LONGER)
    yield _completion(model, "logprobs of a long prompt", _LONG, echo=True, max_tokens=4)
    yield _completion(model, "token ids as a prompt", list(range(40, 90)))
    yield _completion(model, "seeded", _SHORT, temperature=1.0, seed=1234, max_tokens=64)
    yield _completion(model, "seeded, streamed", _SHORT, temperature=1.3, seed=99, **counted)
    yield _completion(
        model, "seeded, top-k, top-p, min-p", _SHORT, temperature=1, seed=5, top_k=9, top_p=0.8, min_p=0.01
    )
    penalties: dict[str, Any] = {"presence_penalty": 0.7, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
    yield _completion(model, "penalties and a bias", _SHORT, **penalties, logit_bias={"101": 4.0, "32": -100})
    yield _completion(model, "a stop", _SHORT, stop=["e", "a"], ignore_eos=False, max_tokens=64)


def _chats(model: str) -> Iterator[Ask]:
    said = [{"role": "system", "content": _OTHERS[0]}, {"role": "user", "content": _LONG}]
    body = {"model": model, "messages": said, "max_completion_tokens": 24, "temperature": 0, "return_token_ids": True}
    body |= {"logprobs": True, "top_logprobs": 4}
    yield Ask("chat", "/v1/chat/completions", body)
    yield Ask("chat, streamed", "/v1/chat/completions", {**body, "stream": True})
    yield Ask("chat, seeded", "/v1/chat/completions", {**body, "temperature": 1.0, "seed": 3})
    message = {"model": model, "messages": said[1:], "max_tokens": 12, "temperature": 0}
    yield Ask("message", "/v1/messages", message)


def _errors(model: str) -> Iterator[Ask]:
    good = {"model": model, "prompt": _SHORT, "max_tokens": 2}
    path = "/v1/completions"
    yield Ask("no JSON", path, b'{"model": ')
    yield Ask("a field of the wrong type", path, {**good, "max_tokens": "many"})
    yield Ask("a field out of range", path, {**good, "temperature": -1})
    yield Ask("no prompt", path, {"model": model})
    yield Ask("unknown model", path, {**good, "model": "nobody"})
    yield Ask("prompt too long", path, {**good, "prompt": [65] * (MODEL_LENGTH + 1)})
    yield Ask("too many tokens wanted", path, {**good, "max_tokens": MODEL_LENGTH})
    yield Ask("unknown token", path, {**good, "prompt": [10**6]})
    yield Ask("chat without messages", "/v1/chat/completions", {"model": model})
    yield Ask("streamed error", path, {**good, "model": "nobody", "stream": True})
    yield Ask("no such page", "/v1/nothing")
    yield Ask("a page that takes no GET", path)


def _together(model: str, how: str, *, loose: bool = False) -> Iterator[Ask]:
    """More requests than the four sequences that smoke's server runs at once: greedy, seeded, streamed, long."""
    ways: tuple[dict[str, Any], ...] = (
        {"max_tokens": 40},
        {"temperature": 1.0, "seed": 11},
        {"stream": True},
        {"max_tokens": 8},
    )
    prompts = (*_OTHERS, _LONG[40:])
    for place, prompt in enumerate(prompts):
        way, name = ways[place % 4], f"{how}, {place + 1} of {len(prompts)}"
        yield _completion(model, name, _UNDIVIDED if loose and "seed" in way else prompt, loose=loose, **way)
