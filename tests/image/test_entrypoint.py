"""The entrypoint and the health check, run as an image runs them, with a program `vllm` that tells its words."""

import http.server
import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from sparkforge.core.paths import IMAGES

ENTRYPOINT = IMAGES / "run" / "entrypoint"
HEALTHCHECK = IMAGES / "run" / "healthcheck"
CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "HF_HOME": "hf",
}


@pytest.fixture
def image(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    vllm = programs / "vllm"
    vllm.write_text('#!/bin/sh\necho "vllm $*"\n')
    vllm.chmod(0o755)
    environment = {name: str(tmp_path / "cache" / folder) for name, folder in CACHES.items()}
    environment |= {"PATH": f"{programs}:/usr/bin:/bin", "SPARKFORGE_HEALTH": str(tmp_path / "health")}
    environment["SPARKFORGE_SHINIT"] = str(tmp_path / "shinit")

    def run(*words, script=ENTRYPOINT, **more):
        return subprocess.run(
            [script, *words], env=environment | more, capture_output=True, text=True, check=False, cwd=tmp_path
        )

    run.folder = tmp_path
    return run


@pytest.mark.parametrize(
    ("words", "ran"),
    [
        (["openai/gpt-oss-120b"], "vllm serve openai/gpt-oss-120b"),
        (["openai/gpt-oss-120b", "--port", "9"], "vllm serve openai/gpt-oss-120b --port 9"),
        (["--model", "x"], "vllm serve --model x"),
        (["vllm", "bench", "serve"], "vllm bench serve"),
        (["echo", "a b"], "a b"),
        (["/bin/echo", "x"], "x"),
    ],
)
def test_what_runs(image, words, ran):
    done = image(*words)
    assert (done.returncode, done.stdout.strip()) == (0, ran)


def test_a_folder_with_a_model_is_served_and_one_without_is_not(image):
    (image.folder / "model").mkdir()
    assert image("./model").returncode == 126
    (image.folder / "model" / "config.json").write_text("{}")
    assert image("./model").stdout.strip() == "vllm serve ./model"


def test_no_words_are_answered_with_the_usage(image):
    done = image()
    assert done.returncode == 2
    assert "openai/gpt-oss-120b" in done.stderr


def test_a_word_that_is_nothing_says_what_to_give(image):
    done = image("vlm")
    assert done.returncode == 127
    assert "do:" in done.stderr


def test_the_exit_status_and_the_process_are_the_commands(image):
    assert image("sh", "-c", "exit 9").returncode == 9
    assert image("sh", "-c", "kill -TERM $$").returncode == -15


def test_the_banner_is_short_and_goes_to_the_log(image):
    done = image("echo", "x")
    lines = done.stderr.splitlines()
    assert 1 <= len(lines) <= 10
    assert any("GPU" in line or "driver" in line for line in lines)
    assert image("echo", "x", SPARKFORGE_QUIET="1").stderr == ""


def test_the_cpu_image_asks_for_no_gpu(image):
    assert "--gpus all" in image("echo", "x").stderr
    said = image("echo", "x", VLLM_TARGET_DEVICE="cpu").stderr
    assert "it uses no GPU" in said
    assert "--gpus" not in said


def test_caches_are_made_and_one_that_cannot_be_is_replaced_aloud(image):
    image("true")
    assert all((image.folder / "cache" / folder).is_dir() for folder in CACHES.values())
    done = image("sh", "-c", "echo $TRITON_CACHE_DIR", TRITON_CACHE_DIR="/proc/nothing")
    assert "TRITON_CACHE_DIR=/proc/nothing cannot be written" in done.stderr
    assert Path(done.stdout.strip()).is_dir()
    Path(done.stdout.strip()).rmdir()


def test_forward_compatibility_of_a_base_is_set_up_first(image):
    (image.folder / "shinit").write_text("export COMPAT=on\n")
    done = image("sh", "-c", 'echo "$COMPAT $1"', "sh", "a b")
    assert done.stdout.strip() == "on a b"


class Health(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self):
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format, *args):  # noqa: A002  the base class names it so
        pass


@pytest.fixture
def server():
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Health,), {}))
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize(
    "spelled", [["--port", "{}"], ["--port={}"], ["--port", "1", "--host", "0.0.0.0", "--port", "{}"]]
)
def test_the_health_check_asks_the_port_that_is_served(image, server, spelled):
    image("a/model", *(word.format(server.server_port) for word in spelled))
    assert image(script=HEALTHCHECK).returncode == 0
    server.RequestHandlerClass.status = 503
    assert image(script=HEALTHCHECK).returncode == 1


def test_the_health_check_fails_where_nothing_listens_and_passes_where_nothing_serves(image):
    assert image(script=HEALTHCHECK).returncode == 0
    image("a/model", "--port", "1")
    done = image(script=HEALTHCHECK)
    assert (done.returncode, "refused" in done.stdout) == (1, True)
    assert json.loads((image.folder / "health").read_text())["port"] == "1"


def test_scripts_are_executable_and_use_nothing_but_the_standard_library():
    for script in (ENTRYPOINT, HEALTHCHECK):
        assert os.access(script, os.X_OK)
        assert script.read_text().startswith("#!/usr/bin/python3 -IS\n")
