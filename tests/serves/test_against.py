"""Asking a server over HTTP, and holding two servers against each other, with servers that are known to the bit."""

import re
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import against
import pytest
from answers import Answer, Asker
from asks import Ask, Step

from sparkforge.core.errors import CheckFailed
from sparkforge.smoke.checks import CheckVerdict
from sparkforge.smoke.client import NoReply
from sparkforge.smoke.run import Bounds
from sparkforge.smoke.venv_site import VenvSite

PATIENT = Bounds(start=60, stop=60)


class Handler(BaseHTTPRequestHandler):
    """Echoes what is posted; while it is paused, what is posted waits."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/hang-up":
            return self.connection.close()
        if self.path == "/broken":
            return self.say(500, b"the engine is dead", "text/plain")
        return self.say(404, b"nothing here", "text/plain")

    def do_POST(self):
        server, body = self.server, self.rfile.read(int(self.headers["Content-Length"]))
        server.seen.append((self.path, body, server.running.is_set()))
        if self.path in {"/pause?mode=keep", "/resume"}:
            if server.production:
                return self.say(404, b'{"detail": "Not Found"}')
            (server.running.set if self.path == "/resume" else server.running.clear)()
            return self.say(200, b"{}")
        server.running.wait(10)
        if b'"stream"' in body:
            return self.say(200, b'data: {"a": 1}\n\ndata: [DONE]\n\n', "text/event-stream; charset=utf-8")
        return self.say(200, b'{"echo": ' + body + b"}")

    def say(self, status, data, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    made.seen, made.production, made.running = [], False, threading.Event()
    made.running.set()
    made.asker = Asker(f"http://127.0.0.1:{made.server_port}")
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield made
    made.running.set()
    made.shutdown()
    made.server_close()


def test_answers_are_taken_as_they_are(server):
    whole = server.asker.ask(Ask("whole", "/x", {"a": [1, 2]}))
    assert (whole.status, whole.kind, whole.body) == (200, "application/json", {"echo": {"a": [1, 2]}})
    stream = server.asker.ask(Ask("stream", "/x", {"stream": True}))
    assert stream.body == [{"a": 1}, "[DONE]"]
    missing = server.asker.ask(Ask("missing", "/x"))
    assert (missing.status, missing.body) == (404, "nothing here")
    server.asker.ask(Ask("broken", "/x", b"{"))
    assert server.seen[-1][:2] == ("/x", b"{")


def test_no_answer_is_no_reply(server):
    with pytest.raises(NoReply, match="hang up"):
        server.asker.ask(Ask("hang up", "/hang-up"))


def test_a_held_step_is_queued_in_order_before_the_engine_goes_on(server, monkeypatch):
    monkeypatch.setattr("answers._QUEUE_SECONDS", 0.1)
    asks = tuple(Ask(str(place), "/x", place) for place in range(4))
    found = server.asker.take([Step(asks, held=True)])
    assert [(ask.name, answer.body) for ask, answer in found] == [(str(n), {"echo": n}) for n in range(4)]
    assert [(path, body) for path, body, _ in server.seen] == [
        ("/pause?mode=keep", b""),
        *(("/x", str(place).encode()) for place in range(4)),
        ("/resume", b""),
    ]
    assert [running for path, _, running in server.seen if path == "/x"] == [False] * 4


def test_a_step_that_is_not_held_is_sent_at_once(server):
    server.running.clear()  # each waits for all the others
    asks = tuple(Ask(str(place), "/x", place) for place in range(4))
    threading.Thread(target=lambda: (_until(lambda: len(server.seen) == 4), server.running.set())).start()
    assert len(server.asker.take([Step(asks)])) == 4


def _until(true):
    end = time.monotonic() + 5
    while not true() and time.monotonic() < end:
        time.sleep(0.01)


def test_a_server_that_cannot_be_paused_is_named(server):
    server.production = True
    with pytest.raises(CheckFailed, match="pause") as failed:
        server.asker.take([Step((Ask("one", "/x", 1),), held=True)])
    assert "VLLM_SERVER_DEV_MODE" in failed.value.do


def answered(token):
    return Answer(200, "application/json", {"choices": [{"token_ids": [4, token]}]})


def once(model):
    yield Step((Ask("greedy", "/v1/completions", {"model": model, "prompt": "abc", "max_tokens": 8, "stream": False}),))


def test_a_server_is_started_asked_and_removed(fake_venv, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = against.taken(VenvSite(fake_venv()), tmp_path, steps=once, bounds=PATIENT)
    assert [(ask.name, answer.status) for ask, answer in found] == [("greedy", 200)]
    assert list(tmp_path.glob("sparkforge-smoke-*")) == []


@dataclass(frozen=True)
class Faulty(VenvSite):
    """A site whose servers have a fault, whatever the environment says."""

    fault: str = ""

    def start(self, model, flags, env, *, user):
        return super().start(model, flags, {**env, "FAKE_FAULT": self.fault}, user=user)


def test_a_server_that_leaves_a_request_without_an_answer_shows_its_log(fake_venv, tmp_path):
    def gone(model):
        yield Step((Ask("models", "/v1/models"),))

    found = against.taken(VenvSite(fake_venv()), tmp_path, steps=gone, bounds=PATIENT)
    assert found[0][1].status == 501  # it knows POST alone
    with pytest.raises(CheckFailed) as failed:
        against.taken(Faulty(fake_venv(name="b"), fault="dies"), tmp_path, steps=once, bounds=PATIENT)
    assert "no memory for the KV cache" in failed.value.why


def test_a_server_that_is_broken_is_no_comparison(server, fake_venv, tmp_path, monkeypatch):
    def broken(model):
        yield Step((Ask("broken", "/broken"),))

    monkeypatch.setattr(against, "Asker", lambda base: server.asker)
    with pytest.raises(CheckFailed, match="broke under") as failed:
        against.taken(VenvSite(fake_venv()), tmp_path, steps=broken, bounds=PATIENT)
    assert "engine is dead" in failed.value.why
    assert "fake server: words" in failed.value.why


def test_a_token_that_differs_fails_and_names_the_place():
    def said(token):
        return [(Ask("greedy", "/x", {}), answered(token))]

    (verdict,) = against.compared(said(5), said(6))
    assert verdict.verdict is CheckVerdict.FAILED
    assert re.search(r"token_ids\[1\] is 5 and 6", verdict.said)


def test_answers_to_different_requests_are_no_comparison():
    one, other = ([(Ask(name, "/x", {}), answered(1))] for name in ("a", "b"))
    with pytest.raises(CheckFailed):
        against.compared(one, other)
