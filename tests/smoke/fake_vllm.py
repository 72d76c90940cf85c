"""A server that speaks as much of vLLM's completions as smoke reads, rightly or with one planted fault.

As a program it takes vLLM's words (`serve MODEL --port N ...`) and its fault from $FAKE_FAULT.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers with the fault that its server carries."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault, turn = self.server.fault, self.server.turn
        self.server.turn += 1
        if fault == "status":
            return self._send(b'{"error": {"message": "out of memory"}}', status=500)
        if fault == "silent":
            return time.sleep(1.0)
        chat = self.path == "/v1/chat/completions"
        if chat:
            asked |= {"prompt": asked["messages"][0]["content"], "stream": False}
        prompt = list(asked["prompt"].encode())
        ids = [(place * 7 + len(prompt)) % 251 for place in range(asked["max_tokens"])]
        if fault == "nondeterministic":
            ids[5:] = [turn % 256 for _ in ids[5:]]
        if fault == "other stream" and asked["stream"]:
            ids[3] += 1
        usage = self._usage(fault, prompt, ids)
        prompt = prompt if fault == "long prompt" else prompt[:7]
        if fault == "ids short":
            ids.pop()
        if fault == "prompt ids short":
            prompt.pop()
        finish = "stop" if fault == "finish" else "length"
        if asked["stream"]:
            return self._stream(fault, prompt, ids, usage, finish)
        if chat and fault == "no template":
            usage |= {"prompt_tokens": usage["prompt_tokens"] - 1, "total_tokens": usage["total_tokens"] - 1}
        return self._whole(fault, prompt, ids, usage, finish, chat=chat and fault != "no chat")

    def _whole(self, fault, prompt, ids, usage, finish, *, chat):
        choice = self._choice(fault, ids, finish) | {"prompt_token_ids": prompt}
        if chat:
            choice["message"] = {"role": "assistant", "content": choice.pop("text")}
        body = {"choices": [choice], "usage": usage}
        if fault == "no choices":
            del body["choices"]
        if fault == "empty choices":
            body["choices"] = []
        if fault == "no usage":
            del body["usage"]
        data = json.dumps(body).encode()
        return self._send(b"<html>a proxy's page</html>" if fault == "garbage" else data)

    def _usage(self, fault, prompt, ids):
        usage = {
            "prompt_tokens": len(prompt) if fault == "long prompt" else 7,
            "completion_tokens": len(ids) - (fault == "usage off"),
        }
        return usage | {"total_tokens": sum(usage.values()) + (fault == "usage does not add up")}

    def _choice(self, fault, ids, finish):
        text = "" if fault == "no text" else "".join(f" {one}" for one in ids)
        choice = {"text": text, "finish_reason": finish, "token_ids": ids}
        if fault == "no ids":
            choice["token_ids"] = None
        if fault == "text is a number":
            choice["text"] = 1
        return choice

    def _stream(self, fault, prompt, ids, usage, finish):
        events = [
            {"choices": [self._choice(fault, [one], finish if place == len(ids) - 1 else None)]}
            for place, one in enumerate(ids)
        ]
        events[0]["choices"][0]["prompt_token_ids"] = prompt
        if fault == "one piece":
            events = [{"choices": [self._choice(fault, ids, finish) | {"prompt_token_ids": prompt}]}]
        if fault == "no choices":
            events = [{"id": "x"} for _ in events]
        if fault == "empty choices":
            events = [{"choices": []}]
        if fault != "no usage":
            events.append({"choices": [], "usage": usage})
        lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
        if fault == "garbage":
            lines[2] = b"data: {half an event\n\n"
        if fault != "no done":
            lines.append(b"data: [DONE]\n\n")
        if fault == "after done":
            lines.append(lines[0])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if fault == "breaks off":
            self.send_header("Content-Length", "100000")
            lines = lines[:2]
        self.end_headers()
        self.wfile.write(b": a comment\n\n")
        for line in lines:
            self.wfile.write(line)
            self.wfile.flush()

    def _send(self, data, status=200):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data) + 5 * (self.server.fault == "breaks off")))
        self.end_headers()
        self.wfile.write(data)


def server(fault, port=0):
    """A server of this fault, not yet serving."""
    made = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    made.daemon_threads = True
    made.fault, made.turn = fault, 0
    return made


def main():
    fault = os.environ.get("FAKE_FAULT", "")
    print("fake server: words", sys.argv[1:], flush=True)
    if fault == "dies":
        sys.exit("no memory for the KV cache")
    made = server(fault, int(sys.argv[sys.argv.index("--port") + 1]))

    def term(*_):
        if fault == "ignores SIGTERM":
            return
        if fault == "traceback":
            print("(Worker) Traceback (most recent call last):\n  boom", flush=True)
        if fault == "leaves a child":
            subprocess.Popen(["sleep", "60"])
        threading.Thread(target=made.shutdown).start()

    signal.signal(signal.SIGTERM, term)
    made.serve_forever(poll_interval=0.02)
    sys.exit(3 if fault == "status 3" else 0)


if __name__ == "__main__":
    main()
