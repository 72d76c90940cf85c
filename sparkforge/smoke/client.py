"""The small part of the OpenAI API that smoke speaks, strictly read.

A reply is typed as it comes in: status 200 with a body that lacks `choices`, a stream that ends without
`[DONE]`, or an event that is no JSON is a `BadReply` with the start of what came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec
import requests

from sparkforge.core.errors import CheckFailed

_CONNECT_SECONDS = 5.0
_EXCERPT = 300
_OK = 200


_Kind = TypeVar("_Kind", bound="_Choice | _Turn")
_Any = TypeVar("_Any")


class BadReply(CheckFailed):
    """The server answered, but not with what its API says."""


class NoReply(CheckFailed):
    """The server refused the connection, closed it, or was silent for too long."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the server reports them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Message(msgspec.Struct, frozen=True):
    content: str


class _Choice(msgspec.Struct, frozen=True):
    text: str
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Turn(msgspec.Struct, frozen=True):
    message: _Message
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Body(msgspec.Struct, Generic[_Kind], frozen=True):
    choices: list[_Kind]
    usage: Usage | None = None


@dataclass(frozen=True)
class Completion:
    """One completion, whole.

    Attributes:
        text: what was generated.
        finish: the finish reason, None if the server gave none.
        usage: token counts, None if the server gave none.
        tokens: ids generated; empty if the server does not give them (vLLM does, `return_token_ids`).
        prompt: ids of the prompt; empty likewise.
        chunks: seconds after the request at which each piece with a choice came; one for a reply in one piece.
    """

    text: str
    finish: str | None
    usage: Usage | None
    tokens: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    chunks: tuple[float, ...] = ()


@dataclass
class Client:
    """Asks one server for completions and chats of one model.

    Attributes:
        base: such as http://127.0.0.1:8000, without a slash at the end.
        model: the name that it serves.
        timeout: seconds of silence after which a request is given up.
    """

    base: str
    model: str
    timeout: float = 120.0
    session: requests.Session = field(default_factory=requests.Session)

    def __post_init__(self) -> None:
        self.session.trust_env = False  # a proxy of the environment has no business with our own server

    def complete(self, prompt: str | Sequence[int], tokens: int) -> Completion:
        """Exactly `tokens` greedy tokens after a prompt, in one reply.

        Raises:
            BadReply: not a completion.
            NoReply: nothing came.
        """
        begun = time.monotonic()
        with self._completion(prompt, tokens, stream=False) as reply:
            body = _parsed(_read(reply), _Body[_Choice])
        return _whole(body, lambda choice: choice.text, time.monotonic() - begun)

    def chat(self, text: str, tokens: int) -> Completion:
        """Exactly `tokens` greedy tokens of an answer to one message of a user, in one reply.

        Raises:
            BadReply: not a chat completion.
            NoReply: nothing came.
        """
        begun = time.monotonic()
        with self._post("chat/completions", {"messages": [{"role": "user", "content": text}]}, tokens) as reply:
            body = _parsed(_read(reply), _Body[_Turn])
        return _whole(body, lambda turn: turn.message.content, time.monotonic() - begun)

    def stream(self, prompt: str | Sequence[int], tokens: int) -> Completion:
        """The same, streamed and put together; `chunks` says when the pieces came.

        Raises:
            BadReply: an event is no completion, or the stream ends without `[DONE]`.
            NoReply: nothing came, or the connection broke.
        """
        begun = time.monotonic()
        texts: list[str] = []
        ids: list[int] = []
        times: list[float] = []
        prompt_ids: tuple[int, ...] = ()
        finish, usage = None, None
        with self._completion(prompt, tokens, stream=True) as reply:
            for event in events(reply):
                body = _parsed(event, _Body[_Choice])
                usage = body.usage or usage
                for choice in body.choices:
                    texts.append(choice.text)
                    ids += choice.token_ids or ()
                    prompt_ids = tuple(choice.prompt_token_ids or prompt_ids)
                    finish = choice.finish_reason or finish
                    times.append(time.monotonic() - begun)
        if not times:
            raise BadReply("a stream without a single choice")
        return Completion("".join(texts), finish, usage, tuple(ids), prompt_ids, tuple(times))

    def _completion(self, prompt: str | Sequence[int], tokens: int, *, stream: bool) -> requests.Response:
        body: dict[str, object] = {"prompt": prompt if isinstance(prompt, str) else list(prompt), "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        return self._post("completions", body, tokens)

    def _post(self, path: str, more: dict[str, object], tokens: int) -> requests.Response:
        body = {
            "model": self.model,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,  # vLLM's: the count is then exact
            "return_token_ids": True,  # vLLM's
            **more,
        }
        try:
            reply = self.session.post(
                f"{self.base}/v1/{path}", json=body, stream=True, timeout=(_CONNECT_SECONDS, self.timeout)
            )
        except requests.RequestException as lost:
            raise NoReply(f"no reply from {self.base}", why=_reason(lost)) from lost
        if reply.status_code != _OK:
            with reply:
                said = _excerpt(_read(reply))
            raise BadReply(f"status {reply.status_code} for /v1/{path}", why=said)
        return reply


def _whole(body: _Body[_Kind], text: Callable[[_Kind], str], seconds: float) -> Completion:
    if not body.choices:
        raise BadReply("status 200 with an empty `choices`")
    choice = body.choices[0]
    ids, prompt = tuple(choice.token_ids or ()), tuple(choice.prompt_token_ids or ())
    return Completion(text(choice), choice.finish_reason, body.usage, ids, prompt, (seconds,))


def events(reply: requests.Response) -> Iterator[bytes]:
    """Data of each server-sent event, `[DONE]` required as the last one and not given out.

    Raises:
        BadReply: the stream ends without `[DONE]`, or goes on after it.
        NoReply: the connection broke, or was silent for too long.
    """
    done = False
    try:
        for line in reply.iter_lines():
            if not line.startswith(b"data:"):
                continue  # blank lines end events; comments and event names carry nothing of ours
            data = line.removeprefix(b"data:").strip()
            if done:
                raise BadReply("a stream that goes on after [DONE]", why=_excerpt(data))
            if data == b"[DONE]":
                done = True
            else:
                yield data
    except requests.RequestException as lost:
        raise NoReply("the stream broke off", why=_reason(lost)) from lost
    if not done:
        raise BadReply("a stream that ends without [DONE]")


def _read(reply: requests.Response) -> bytes:
    try:
        return reply.content
    except requests.RequestException as lost:
        raise NoReply("the reply broke off", why=_reason(lost)) from lost


def _parsed(data: bytes, kind: type[_Any]) -> _Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise BadReply("status 200 with another body than asked for", why=f"{wrong}: {_excerpt(data)}") from wrong


def _excerpt(data: bytes) -> str:
    text = data[:_EXCERPT].decode(errors="replace")
    return text + (" ..." if len(data) > _EXCERPT else "")


def _reason(lost: Exception) -> str:
    return f"{type(lost).__name__}: {lost}"[:_EXCERPT]
