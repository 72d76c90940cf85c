"""One server's answers: taken over HTTP, put into a form in which two servers can be held against each other."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import requests
from asks import Ask, Step

from sparkforge.core.errors import CheckFailed
from sparkforge.smoke.client import NoReply

_SILENCE_SECONDS = 300.0
_QUEUE_SECONDS = 0.5  # from the send to the engine's queue: parsing and tokenizing, with much to spare
_OK = 200


@dataclass(frozen=True)
class Answer:
    """What a server answered.

    Attributes:
        status: of HTTP.
        kind: its content type.
        body: the JSON value; a stream is the list of its events' values, with "[DONE]" as the last.
    """

    status: int
    kind: str
    body: object


@dataclass(frozen=True)
class Asker:
    """Asks one server.

    Attributes:
        base: its address, http://host:port.
    """

    base: str

    def take(self, steps: Iterable[Step]) -> list[tuple[Ask, Answer]]:
        """Answers to all asks of all steps, in their order.

        Raises:
            NoReply: the server did not answer one of them.
        """
        found: list[tuple[Ask, Answer]] = []
        for step in steps:
            found += zip(step.asks, self._held(step) if step.held else self._at_once(step), strict=True)
        return found

    def _at_once(self, step: Step) -> list[Answer]:
        if len(step.asks) == 1:
            return [self.ask(step.asks[0])]
        gate = threading.Barrier(len(step.asks))

        def go(ask: Ask) -> Answer:
            gate.wait()
            return self.ask(ask)

        with ThreadPoolExecutor(len(step.asks)) as pool:
            return list(pool.map(go, step.asks))

    def _held(self, step: Step) -> list[Answer]:
        """Pause, queue, go on; the engine then takes all of them in the order in which they were queued."""
        self._engine("/pause?mode=keep")
        with ThreadPoolExecutor(len(step.asks)) as pool:
            try:
                under_way = []
                for ask in step.asks:
                    under_way.append(pool.submit(self.ask, ask))
                    time.sleep(_QUEUE_SECONDS)
            finally:
                self._engine("/resume")
            return [one.result() for one in under_way]

    def _engine(self, path: str) -> None:
        answer = self.ask(Ask(path, path, b""))
        if answer.status != _OK:
            raise CheckFailed(
                f"the server does not {path.partition('?')[0]}",
                why=f"status {answer.status}: {answer.body}",
                do="VLLM_SERVER_DEV_MODE=1 for it",
            )

    def ask(self, ask: Ask) -> Answer:
        """One answer, whatever its status.

        Raises:
            NoReply: none came.
        """
        # A session of its own: asks of one step run in threads.
        with requests.Session() as session:
            session.trust_env = False  # a proxy of the environment has no business with our own server
            try:
                reply = session.request(
                    "GET" if ask.body is None else "POST",
                    self.base + ask.path,
                    data=_data(ask.body),
                    headers={"Content-Type": "application/json"},
                    timeout=_SILENCE_SECONDS,
                )
            except requests.RequestException as lost:
                raise NoReply(f"no reply to {ask.name!r}", why=f"{type(lost).__name__}: {lost}"[:300]) from lost
        kind = reply.headers.get("Content-Type", "")
        return Answer(reply.status_code, kind, _events(reply.text) if "event-stream" in kind else _value(reply.text))


def _data(body: object) -> bytes | None:
    return body if body is None or isinstance(body, bytes) else json.dumps(body).encode()


def _value(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value


def _events(text: str) -> list[object]:
    return [_value(line.removeprefix("data:").strip()) for line in text.splitlines() if line.startswith("data:")]
