import msgspec
import pytest

from sparkforge.core.arch import parse_archs
from sparkforge.core.platforms import AMD64, ARM64
from sparkforge.engine.engine import Layer
from sparkforge.image import labels
from sparkforge.image.layers import difference

UPSTREAM = labels.UpstreamFacts(
    release="0.21.0", commit="c" * 40, tree="t" * 40, series="s" * 64, wheel="w" * 64, package="vllm"
)
FACTS = labels.ImageFacts(
    stack="vllm-0.21",
    target="serve",
    platform="linux/arm64",
    archs=["12.1f"],
    upstreams={"vllm": UPSTREAM},
    kernels="k" * 64,
    lock="l" * 64,
    base="ngc",
    base_name="registry/base:1",
    base_digest="sha256:" + "d" * 64,
    build="b" * 64,
    version="0.1.0",
    revision="",
    created="2026-01-01T00:00:00Z",
)


def test_labels_say_what_went_in_and_leave_out_what_is_not_known():
    said = labels.labels(FACTS)
    assert said["org.opencontainers.image.base.name"] == "registry/base:1"
    assert said["org.opencontainers.image.base.digest"].startswith("sha256:")
    assert said["dev.sparkforge.tree.vllm"] == "t" * 40
    assert said["dev.sparkforge.series.vllm"] == "s" * 64
    assert said["dev.sparkforge.kernels"] == "k" * 64
    assert said["ai.vllm.build.commit"] == "c" * 40
    assert "org.opencontainers.image.revision" not in said
    assert "dev.sparkforge.test-only" not in said
    assert all(said.values())
    assert labels.manifest(FACTS)["labels"] == said


@pytest.mark.parametrize(
    ("target", "platform", "archs", "only"),
    [
        ("serve", AMD64, "12.1f", True),
        ("serve", ARM64, "12.1f", False),
        ("serve", AMD64, "12.0f", False),  # a workstation card
        ("serve", AMD64, "9.0a", False),
        ("cpu", AMD64, "12.1f", False),
    ],
)
def test_an_image_that_no_machine_could_serve_from_is_named_so(target, platform, archs, only):
    parsed = parse_archs(archs)
    assert labels.test_only(target, platform, parsed) is only
    assert labels.tag("s", target, platform, parsed).endswith("test-only") is only


def test_an_image_says_which_modules_it_has_or_that_it_has_none():
    with_them = msgspec.structs.replace(FACTS, aot="a" * 64, aot_modules={"sampling": "f" * 64})
    assert labels.labels(with_them)["dev.sparkforge.aot"] == "a" * 64
    assert labels.manifest(with_them)["aot_modules"] == {"sampling": "f" * 64}
    assert labels.PARTS_LEFT_OUT not in labels.labels(with_them)
    lacking = msgspec.structs.replace(
        with_them, aot_left_out={"fused_moe_120": "why"}, parts_left_out={"moe": ["fused_moe_120"], "xqa": ["x"]}
    )
    assert labels.labels(lacking)[labels.PARTS_LEFT_OUT] == "moe,xqa"
    assert labels.manifest(lacking)["aot_left_out"] == {"fused_moe_120": "why"}
    without = msgspec.structs.replace(FACTS, aot=labels.NO_MODULES)
    assert labels.labels(without)["dev.sparkforge.aot"] == "none"
    assert "dev.sparkforge.aot" not in labels.labels(FACTS)


def test_the_difference_of_two_builds():
    base, run, old, new = (Layer(f"sha256:{name}", name, 10) for name in ("base", "run", "old", "new"))
    found = difference([base, run, old], [base, run, new])
    assert (found.kept, found.new, found.new_bytes) == ((base, run), (new,), 10)
    assert difference([base], [base]).new == ()
    assert difference([], [Layer("x", "", None)]).new_bytes is None
