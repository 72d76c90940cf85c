"""`vllm serve` on the fitted model: chats and completions, streamed, whole, alone and many at once, token for token.

    python server.py JOB.json

JOB: {"model", "flags": words of vllm serve, "out", "chats": [{"text", "prompt", "reply"}], "prompts": [{"prompt",
"reply"}], "seconds"}. The expected replies are those that the engines of `LLM` are held to.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bound

NAME = "tiny"
PLAIN = {"model": NAME, "temperature": 0.0, "ignore_eos": True, "return_token_ids": True}
# No proxy of the environment: the server is here.
_OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """One server process and its API."""

    def __init__(self, model: str, flags: list[str], log: Path):
        self.base = f"http://127.0.0.1:{(port := free_port())}"
        words = ["serve", model, "--host=127.0.0.1", f"--port={port}", f"--served-model-name={NAME}", *flags]
        env = {key: value for key, value in os.environ.items() if key != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.cli.main", *words], env=env, stdout=out, stderr=out
            )

    def ready(self, seconds: float) -> float:
        """Wait until it answers; seconds taken."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}")
            with contextlib.suppress(OSError), _OPEN(f"{self.base}/health", timeout=5) as reply:
                if reply.status == 200:
                    return time.monotonic() - begun
            time.sleep(0.5)
        raise RuntimeError(f"not ready after {seconds:.0f} s")

    def stop(self) -> int:
        """SIGTERM, and SIGKILL after 20 s; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def ask(self, path: str, body: dict, stream: bool) -> tuple[list[int], list[int], int]:
        """The prompt's tokens as the server saw them, the reply's, and in how many pieces it came."""
        data = json.dumps(PLAIN | body | {"stream": stream}).encode()
        request = urllib.request.Request(f"{self.base}{path}", data, {"Content-Type": "application/json"})
        prompt, reply, pieces, ended = [], [], 0, not stream
        with _OPEN(request, timeout=120) as answer:
            for line in answer if stream else [b"data: " + answer.read()]:
                said = line.strip().removeprefix(b"data:").strip()
                if said == b"[DONE]":
                    ended = True
                elif said:
                    piece = json.loads(said)
                    prompt = prompt or piece.get("prompt_token_ids") or []
                    for choice in piece["choices"]:
                        prompt = prompt or choice.get("prompt_token_ids") or []
                        reply += choice.get("token_ids") or []
                        pieces += bool(choice.get("token_ids"))
        if not ended:
            raise RuntimeError("a stream without [DONE]")
        return prompt, reply, pieces


def questions(job: dict) -> list[tuple[str, dict, list[int], list[int]]]:
    """Path, body, and the tokens of prompt and reply that must come back."""
    chats = [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": one["text"]}], "max_tokens": len(one["reply"])},
            one["prompt"],
            one["reply"],
        )
        for one in job["chats"]
    ]
    plain = [
        ("/v1/completions", {"prompt": one["prompt"], "max_tokens": len(one["reply"])}, one["prompt"], one["reply"])
        for one in job["prompts"]
    ]
    return chats + plain


def main(path: Path) -> None:
    """Serve, ask, compare, stop."""
    job = json.loads(path.read_text())
    result: dict = {}
    server = Server(job["model"], job["flags"], Path(f"{job['out']}.server.log"))
    try:
        result["ready"] = server.ready(job["seconds"])
        asked = questions(job)
        result["questions"] = len(asked)
        for name, stream, width in (("whole", False, 1), ("streamed", True, 1), ("many at once", True, 16)):
            work = asked if width == 1 else asked * 4
            begun = time.monotonic()
            with ThreadPoolExecutor(width) as pool:
                answers = list(pool.map(lambda one, s=stream: server.ask(one[0], one[1], s), work))
            wrong = [
                {"path": one[0], "wanted": one[3], "said": answer[1], "prompt equal": answer[0] == one[2]}
                for one, answer in zip(work, answers, strict=True)
                if answer[1] != one[3] or answer[0] != one[2]
            ]
            result[name] = {
                "asked": len(work), "tokens": sum(len(answer[1]) for answer in answers),
                "pieces": sum(answer[2] for answer in answers), "wrong": len(wrong), "first wrong": wrong[:3],
                "seconds": time.monotonic() - begun,
            }  # fmt: skip
    finally:
        result["exit"] = server.stop()
        log = Path(f"{job['out']}.server.log").read_text(errors="replace")
        result["log"] = [
            line[-300:]
            for line in log.splitlines()
            if any(w in line for w in ("backend", "CUDA graph", "Mxfp4", "MXFP4", "captur"))
        ][:30]
        if "many at once" not in result:
            sys.stdout.write("\n".join(log.splitlines()[-60:]) + "\n")
        Path(f"{job['out']}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    bound.tell()
