"""Images built for real, on each engine that is here, from a stack in miniature."""

import json
import subprocess
import time

import pytest

from sparkforge.engine.engine import Launch
from sparkforge.image.layers import difference

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TAG = "localhost/sparkforge-test:demo"


def run(engine, *words, **launch):
    container = engine.run(Launch(TAG, words, **launch))
    try:
        code = container.wait(timeout=60)
        return code, container.logs()
    finally:
        container.remove()


@pytest.fixture(scope="module")
def image(engine, root_image, demo):
    engine.build(demo.recipe("first", root_image, TAG))
    yield TAG
    engine.untag(TAG)


def test_an_edit_of_a_patch_is_in_the_image_and_rebuilds_nothing_below_the_overlay(engine, root_image, demo, image):
    code, said = run(engine, "python", "-c", "import vllm; print(vllm.WORD)")
    assert (code, "first" in said) == (0, True), said
    before = engine.layers(TAG)
    engine.build(demo.recipe("other", root_image, TAG))  # the same length: neither size nor time tells
    code, said = run(engine, "python", "-c", "import vllm; print(vllm.WORD)")
    assert (code, "other" in said) == (0, True), said
    after = engine.layers(TAG)
    changed = difference(before, after)
    below = ["base", "runtime", "home", "upstreams", "modules", "kernels"]
    assert len(changed.kept) == len(below), changed
    assert changed.new
    assert changed.new_bytes is not None
    assert changed.new_bytes < 100_000
    former = engine.image_id(TAG)
    engine.build(demo.recipe("first", root_image, TAG))
    listed = subprocess.run([engine.program, "images", "-q", "--no-trunc"], capture_output=True, text=True, check=True)
    assert former not in listed.stdout.split(), "the image that was replaced is left behind"
    again = [layer.digest for layer in engine.layers(TAG)]
    assert again[: len(below)] == [layer.digest for layer in before[: len(below)]]


def test_flashinfers_modules_are_found_by_the_tree_of_the_overlay(engine, root_image, demo, image):
    found = "import pathlib, vllm; [print(p.read_text(), p) for p in pathlib.Path(vllm.__file__).parents[1].glob('%s')]"
    pattern = "flashinfer/data/aot/{}/probe/probe.so"
    for word in ("first", "other", "first"):
        recipe = demo.recipe(word, root_image, TAG)
        engine.build(recipe)
        tree = recipe.context.joinpath("overlay", "links", "flashinfer", "data", "aot").iterdir()
        code, said = run(engine, "python", "-c", found % pattern.format(next(tree).name))
        assert code == 0, said
        assert "a module" in said
        code, said = run(
            engine, "sh", "-c", "echo names $(ls /opt/venv/lib/python3*/site-packages/flashinfer/data/aot)"
        )
        (names,) = [line.split()[1:] for line in said.splitlines() if line.startswith("names")]
        assert len(names) == 2, names  # the modules, and no link of another tree


def test_runtime_upstream_kernels_and_toolkit_are_there(engine, image):
    program = "import demo_runtime, vllm, sparkforge_kernels, importlib.metadata as m; print(m.version('vllm'))"
    assert run(engine, "python", "-c", program)[0] == 0
    code, said = run(engine, "sh", "-c", "$CUDA_HOME/bin/nvcc && ls -l $CUDA_HOME/lib64/libcudart.so && vllm x")
    assert code == 0, said
    assert "nvcc here" in said
    assert "serving x" in said


def test_runs_as_any_user_without_a_name_and_writes_its_caches(engine, image):
    program = (
        "import getpass, os, sysconfig; print(getpass.getuser(), os.getuid(), os.getgid());"
        "[open(os.path.join(os.environ[k], 'x'), 'w') for k in ('HF_HOME', 'VLLM_CACHE_ROOT', 'CUDA_CACHE_PATH',"
        "'FLASHINFER_WORKSPACE_BASE', 'TRITON_CACHE_DIR', 'TORCHINDUCTOR_CACHE_DIR', 'HOME')];"
        "assert '0123456789ab' in os.environ['TRITON_CACHE_DIR'];"
        "assert os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h'))"
    )
    for user, uid in ((None, "2000 0"), ("12345:0", "12345 0")):
        code, said = run(engine, "python", "-c", program, user=user)
        assert code == 0, said
        assert f"vllm {uid}" in said


def test_the_entrypoint_serves_a_model_and_runs_other_commands_as_given(engine, image):
    assert "serving serve openai/gpt-oss-120b --port 1" in run(engine, "openai/gpt-oss-120b", "--port", "1")[1]
    assert "serving serve --model x" in run(engine, "--model", "x")[1]
    code, said = run(engine, "sh", "-c", "exit 9")
    assert code == 9
    assert "sparkforge: demo serve" in said
    assert run(engine)[0] == 2


def test_the_first_process_gets_the_signal(engine, image):
    script = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True); time.sleep(60)"
    )
    container = engine.run(Launch(TAG, ["python", "-c", script]))
    try:
        for _ in range(200):
            if "up" in container.logs():
                break
            time.sleep(0.1)
        assert container.alive()
        assert container.exec(["true"]).code == 0
        assert container.stop(grace=20) == 7
    finally:
        container.remove()


def test_configuration_labels_and_manifest(engine, image):
    config = engine.config(TAG)
    assert config["User"] == "2000:0"
    assert config["Entrypoint"] == ["/opt/sparkforge/entrypoint"]
    assert config["Healthcheck"]["StartPeriod"] == 20 * 60 * 10**9
    assert engine.labels(TAG)["dev.sparkforge.stack"] == "demo"
    assert json.loads(engine.read(TAG, "/opt/sparkforge/manifest.json"))["stack"] == "demo"
    assert engine.has(TAG)
    assert not engine.has("localhost/sparkforge-test:nothing")
