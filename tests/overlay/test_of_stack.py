"""The overlays of the default stack, on the published wheels."""

from __future__ import annotations

import hashlib
import zipfile

import pytest

from sparkforge.core.hashing import sha256_file
from sparkforge.core.platforms import ARM64
from sparkforge.core.store import Store
from sparkforge.git.of_store import git_of
from sparkforge.inputs import sources
from sparkforge.inputs.fetch import fetch
from sparkforge.inputs.recipes import load_stack
from sparkforge.inspect import elf
from sparkforge.overlay import apply, into_venv, of_stack

STACK = load_stack()
# What a wheel carries besides its tree's files: compiled code, and what its build fetched or made.
NOT_OF_THE_TREE = (
    "vllm/third_party/deep_gemm/",
    "vllm/third_party/flashmla/",
    "vllm/third_party/triton_kernels/",
    "vllm/vllm_flash_attn/",
    "flashinfer/data/build_",
)

pytestmark = [pytest.mark.online, pytest.mark.slow]


def wheel_of(name, build, platform="linux/amd64"):
    return fetch(Store.open(), build.wheels[platform], package=build.package, where=STACK.where(name, "wheels"))


@pytest.mark.parametrize("name", STACK.upstreams)
def test_the_folders_of_the_recipe_are_where_the_wheel_has_them(name):
    upstream, store = STACK.upstreams[name], Store.open()
    pin = sources.pin_commit(store, STACK, name)
    blobs = {}
    for row in git_of(store).run("ls-tree", "-r", "-z", pin.tree).split(b"\0")[:-1]:
        head, _, path = row.partition(b"\t")
        for folder in upstream.overlay:
            if path.decode().startswith(folder.source):
                blobs[folder.target + path.decode().removeprefix(folder.source)] = head.split()[2].decode()
    with zipfile.ZipFile(wheel_of(name, upstream)) as archive:
        files = {n for n in archive.namelist() if not n.endswith("/")}
        other = [p for p in sorted(files & blobs.keys()) if blob(archive.read(p)) != blobs[p]]
    package = {folder.target for folder in upstream.overlay}
    alone = [p for p in files - blobs.keys() if p.startswith(tuple(package)) and not p.endswith(".so")]
    assert other == []
    assert len(files & blobs.keys()) > 1000
    assert [p for p in alone if not p.startswith(NOT_OF_THE_TREE)] == []


def blob(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@pytest.mark.parametrize("target", ["serve", "cpu"])
def test_the_series_go_on_the_published_wheels_and_come_off(demo, target):
    wheels = [wheel_of(name, one.build(target)) for name, one in STACK.upstreams.items()]
    made = demo.folder / "venv"
    demo.uv("venv", made)
    demo.uv("pip", "install", "--python", made / "bin/python", "--no-index", "--no-deps", *wheels)
    before = {p: p.stat().st_ino for p in demo.site(made).rglob("*") if p.is_file()}
    overlays = of_stack.overlays(Store.open(), STACK)
    lines = into_venv.lay(made, overlays)
    assert len(lines) == len(STACK.upstreams)
    assert all("replaced" in line for line in lines)
    for overlay in overlays:
        tree = demo.site(made) / overlay.manifest.package / "sparkforge_tree.txt"
        assert tree.read_text() == f"{overlay.manifest.tree}\n"
    into_venv.take_off(made)
    assert {p for p in demo.site(made).rglob("*") if p.is_file()} == before.keys()


def test_the_layer_for_another_platform_is_made_from_its_own_wheels(demo):
    """What an arm64 image gets over its wheels, laid on whatever machine this is, with nothing of it run."""
    made, layer = demo.folder / "venv", demo.folder / "layer"
    wheels = [wheel_of(name, one.build("serve"), "linux/arm64") for name, one in STACK.upstreams.items()]
    demo.uv("venv", made)
    foreign = ("--python-platform", ARM64.uv("2_36"), "--link-mode", "copy")
    demo.uv("pip", "install", "--python", made / "bin/python", *foreign, "--no-index", "--no-deps", *wheels)
    site = demo.site(made)
    native = site / "vllm" / "_C.abi3.so"
    assert elf.read_elf(native).machine == ARM64.elf_machine
    before = {p: sha256_file(p) for p in site.rglob("*") if p.is_file()}
    overlays = of_stack.overlays(Store.open(), STACK)
    for overlay in overlays:
        apply.apply(site, overlay.path, out=layer)
    assert {p: sha256_file(p) for p in site.rglob("*") if p.is_file()} == before, "the site itself is left alone"
    for overlay in overlays:
        for entry in overlay.manifest.entries:
            if entry.sha256 is not None and (layer / entry.path).is_file():
                assert sha256_file(layer / entry.path) == entry.sha256
        tree = layer / overlay.manifest.package / "sparkforge_tree.txt"
        assert tree.read_text() == f"{overlay.manifest.tree}\n"
        replaced = [entry.path for entry in overlay.manifest.entries if entry.op == "replace"]
        assert replaced
        assert all((layer / path).is_file() for path in replaced)
