"""An image for the other platform: laid on this machine without running anything of it, then run by emulation."""

import io
import json
import tarfile

import pytest

from sparkforge.core.platforms import AMD64, ARM64, Platform
from sparkforge.core.store import Store
from sparkforge.engine import archive
from sparkforge.engine.engine import Launch
from sparkforge.image import base, bootstrap
from sparkforge.inputs.recipes import load_stack

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TAG = "localhost/sparkforge-test:cross"
OTHER = ARM64 if Platform.host() == AMD64 else AMD64


@pytest.fixture
def bare_base(engine, tmp_path):
    """A base of the other platform with one file in it: nothing that a build could run."""
    tag, root = "localhost/sparkforge-test:bare", tmp_path / "root.tar"
    with tarfile.open(root, "w") as tar:
        info = tarfile.TarInfo("etc/os-release")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"ID=x\n"))
    image = archive.write(root, tmp_path / "image.tar", tag=tag, platform=OTHER, made_by="test", labels={})
    engine.load(tmp_path / "image.tar")
    pin = load_stack().bases["bootstrap"]
    yield base.BaseImage("bootstrap", tag, "0" * 12, "bare", image, pin.python, pin.glibc)
    engine.untag(tag)


@pytest.fixture
def built(engine, root_image, demo):
    """Builds the small stack for the other platform on a base; the image is removed afterwards."""

    def build(on):
        engine.build(demo.on(OTHER).recipe("first", on, TAG, build_base=root_image))

    yield build
    if engine.has(TAG):
        engine.untag(TAG)


def test_an_image_is_laid_on_a_base_of_which_nothing_can_run(engine, built, bare_base):
    built(bare_base)
    assert json.loads(engine.read(TAG, "/opt/sparkforge/manifest.json"))["platform"] == OTHER.oci
    site = f"/opt/venv/lib/python{bare_base.python}/site-packages"
    assert engine.read(TAG, f"{site}/demo_native.py") == f"MACHINE = {OTHER.machine!r}\n".encode()
    assert b"WORD = 'first'" in engine.read(TAG, f"{site}/vllm/__init__.py")  # of the overlay
    assert engine.read(TAG, "/etc/os-release") == b"ID=x\n"
    assert engine.config(TAG)["Entrypoint"] == ["/opt/sparkforge/entrypoint"]


def test_it_runs_by_emulation_on_a_real_base(engine, built):
    stack, store = load_stack(), Store.open()
    if not store.has(base.KIND, base.key_for("bootstrap", stack.bases["bootstrap"], OTHER)):
        pytest.skip(f"no base for {OTHER.oci}: it takes minutes to make: invoke build --platform {OTHER.oci}")
    if not bootstrap.emulates(OTHER):
        pytest.skip(f"{OTHER.oci} programs do not run here: invoke setup --platform {OTHER.oci}")
    built(base.ensure(engine, store, stack, "bootstrap", OTHER))
    program = "import demo_native, platform, vllm; print(demo_native.MACHINE, platform.machine(), vllm.WORD)"
    container = engine.run(Launch(TAG, ["python", "-c", program]))
    try:
        assert container.wait(timeout=120) == 0, container.logs()
        assert f"{OTHER.machine} {OTHER.machine} first" in container.logs()
    finally:
        container.remove()
