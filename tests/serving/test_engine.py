"""An image with the profiles of this checkout: its parser, its help, its volumes, and what it serves without words.

The image is the one that `invoke build --target cpu` makes, or the one that SPARKFORGE_PROFILES_IMAGE names.
"""

import importlib.util
import json
import os
import time
import uuid
from pathlib import Path

import pytest

from sparkforge.core.store import Store
from sparkforge.engine.choose import candidates, proven
from sparkforge.engine.engine import Launch, Mount
from sparkforge.image import request
from sparkforge.inputs.recipes import load_stack
from sparkforge.serving import carried as of_image
from sparkforge.smoke.tiny.make import make

pytestmark = [pytest.mark.engine, pytest.mark.slow]

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("profiles_test_parser", HERE / "test_parser.py")
parser = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(parser)

PYTHON = "/opt/venv/bin/python"
START = 600.0
COMPLETE = """
import json, sys, urllib.request
def ask(path, body=None):
    asked = urllib.request.Request("http://127.0.0.1:" + sys.argv[1] + path, body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(asked, timeout=120))
(model,) = ask("/v1/models")["data"]
body = {"model": model["id"], "prompt": "The smith looks", "max_tokens": 8, "ignore_eos": True}
print(json.dumps([model, ask("/v1/completions", json.dumps(body).encode())]))
"""


@pytest.fixture(scope="module")
def held():
    """An able engine and the tag of an image of this checkout that it holds."""
    tag = os.environ.get("SPARKFORGE_PROFILES_IMAGE") or request.parse(load_stack(), target="cpu").tag
    for one in candidates():
        if proven(Store.open(), one).able and one.has(tag):
            try:
                said = one.read(tag, "/opt/sparkforge/profiles.json").decode()
            except Exception:  # noqa: BLE001  an image from before there were profiles
                said = ""
            if said != of_image.text("vllm-0.21", "cpu"):
                print(f"{tag} in {one.name} has other profiles than this checkout")
                continue
            return one, tag
    pytest.skip(f"no engine holds {tag} with the profiles of this checkout: invoke build --target cpu")


@pytest.fixture
def started(held):
    """Starts containers and removes them."""
    engine, tag = held
    made = []

    def start(*words, **more):
        made.append(engine.run(Launch(tag, words, **more)))
        return made[-1]

    yield start
    for one in made:
        one.remove()


def answered(container, port):
    """The model's card and a completion, as soon as the server gives them."""
    end = time.monotonic() + START
    while True:
        assert container.alive(), container.logs()[-3000:]
        done = container.exec([PYTHON, "-c", COMPLETE, str(port)], check=False)
        if done.code == 0:
            return json.loads(done.text)
        assert time.monotonic() < end, container.logs()[-3000:]
        time.sleep(1)


def test_the_images_parser_takes_every_profile(started, asked, tmp_path):
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    tmp_path.chmod(0o755)
    mounts = [Mount(HERE / "ask_parser.py", "/ask.py", read_only=True), Mount(tmp_path, "/asked", read_only=True)]
    container = started("sh", "-c", f"{PYTHON} /ask.py < /asked/asked.json", mounts=mounts)
    assert container.wait(timeout=START) == 0, container.logs()[-2000:]
    (line,) = [line for line in container.logs().splitlines() if line.startswith('{"gpt-oss')]
    parser.judge(asked, line)


def test_help_shows_the_flags_of_the_series(started):
    container = started("--help=all")
    assert container.wait(timeout=START) == 0, container.logs()[-2000:]
    said = container.logs()
    assert "--mxfp4-layers" in said
    for literal in ("flashinfer_cutlass_afp8", "flashinfer_trtllm_afp8"):
        assert literal in said


def test_no_words_serve_the_default_profile(started):
    model = make(Store.open())
    container = started(mounts=[Mount(model, "/models/tiny", read_only=True)])
    card, made = answered(container, 8000)
    assert (card["id"], card["max_model_len"]) == ("tiny", 1024)
    assert made["usage"]["completion_tokens"] == 8
    assert "sparkforge: profile tiny, parts none" in container.logs()
    assert container.exec(["/opt/sparkforge/healthcheck"]).text == "http://127.0.0.1:8000/health: 200"
    assert container.stop() == 0


def test_the_users_words_win_over_a_profiles(started):
    model = make(Store.open())
    words = ("--profile", "tiny", "--max-model-len", "512", "--port", "8123", "--served-model-name", "mine")
    container = started(*words, mounts=[Mount(model, "/models/tiny", read_only=True)])
    card, _ = answered(container, 8123)
    assert (card["id"], card["max_model_len"]) == ("mine", 512)
    assert "yours in place of the profile's: --served-model-name, --max-model-len" in container.logs()


def test_words_that_mean_nothing_end_with_status_2(started):
    for words in (("--profile", "fast"), ()):  # no model is mounted for the second
        container = started(*words)
        assert container.wait(timeout=60) == 2
        assert "do:" in container.logs()


def test_a_named_volume_can_be_written_by_any_user_of_group_0(held, started):
    engine, _ = held
    if engine.name != "docker":
        pytest.skip("named volumes are Docker's")
    volume = f"sparkforge-test-{uuid.uuid4().hex[:8]}"
    try:
        for folder in ("sparkforge", "huggingface"):
            mounts = [Mount(Path(volume), f"/home/vllm/.cache/{folder}")]
            container = started("sh", "-c", f"touch ~/.cache/{folder}/made", user="12345:0", mounts=mounts)
            assert container.wait(timeout=60) == 0, container.logs()
            assert "cannot be written" not in container.logs()
            container.remove()
            engine._daemon.volumes.get(volume).remove()
    finally:
        for left in engine._daemon.volumes.list(filters={"name": volume}):
            left.remove(force=True)
