"""An image for the other platform: laid on this machine without running anything of it, then run by emulation."""

import json

import pytest

from sparkforge.core.platforms import AMD64, ARM64, Platform
from sparkforge.core.store import Store
from sparkforge.engine.engine import Launch
from sparkforge.image import base, bootstrap
from sparkforge.inputs.recipes import load_stack

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TAG = "localhost/sparkforge-test:cross"
OTHER = ARM64 if Platform.host() == AMD64 else AMD64


@pytest.fixture(scope="module")
def other_base(engine):
    stack, store = load_stack(), Store.open()
    if not store.has(base.KIND, base.key_for("bootstrap", stack.bases["bootstrap"], OTHER)):
        pytest.skip(f"no base for {OTHER.oci}: it takes minutes to make: invoke build --platform {OTHER.oci}")
    if not bootstrap.emulates(OTHER):
        pytest.skip(f"{OTHER.oci} programs do not run here: invoke setup --platform {OTHER.oci}")
    return base.ensure(engine, store, stack, "bootstrap", OTHER)


def test_a_cross_built_image_holds_the_other_platforms_wheels_and_runs(engine, root_image, other_base, demo):
    engine.build(demo.on(OTHER).recipe("first", other_base, TAG, build_base=root_image))
    try:
        manifest = json.loads(engine.read(TAG, "/opt/sparkforge/manifest.json"))
        assert manifest["platform"] == OTHER.oci
        program = "import demo_native, platform, vllm; print(demo_native.MACHINE, platform.machine(), vllm.WORD)"
        container = engine.run(Launch(TAG, ["python", "-c", program]))
        try:
            assert container.wait(timeout=120) == 0, container.logs()
            assert f"{OTHER.machine} {OTHER.machine} first" in container.logs()
        finally:
            container.remove()
    finally:
        engine.untag(TAG)
