"""The overlays of the default stack, on the published wheels."""

from __future__ import annotations

import hashlib
import zipfile

import pytest

from sparkforge import sources
from sparkforge.fetch import fetch
from sparkforge.overlay import of_stack, venv
from sparkforge.recipes import load_stack
from sparkforge.store import Store

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


def wheel_of(name, upstream, build):
    return fetch(Store.open(), build.wheels["linux/amd64"], package=build.package, where=STACK.where(name, "wheels"))


@pytest.mark.parametrize("name", STACK.upstreams)
def test_the_folders_of_the_recipe_are_where_the_wheel_has_them(name):
    upstream, store = STACK.upstreams[name], Store.open()
    pin = sources.pin_commit(store, STACK, name)
    blobs = {}
    for row in store.git().run("ls-tree", "-r", "-z", pin.tree).split(b"\0")[:-1]:
        head, _, path = row.partition(b"\t")
        for folder in upstream.overlay:
            if path.decode().startswith(folder.source):
                blobs[folder.target + path.decode().removeprefix(folder.source)] = head.split()[2].decode()
    with zipfile.ZipFile(wheel_of(name, upstream, upstream)) as archive:
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
    wheels = [wheel_of(name, one, one.build(target)) for name, one in STACK.upstreams.items()]
    made = demo.folder / "venv"
    demo.uv("venv", made)
    demo.uv("pip", "install", "--python", made / "bin/python", "--no-index", "--no-deps", *wheels)
    before = {p: p.stat().st_ino for p in demo.site(made).rglob("*") if p.is_file()}
    overlays = of_stack.overlays(Store.open(), STACK)
    lines = venv.lay(made, overlays)
    assert len(lines) == len(STACK.upstreams)
    assert all("replaced" in line for line in lines)
    for overlay in overlays:
        tree = demo.site(made) / overlay.manifest.package / "sparkforge_tree.txt"
        assert tree.read_text() == f"{overlay.manifest.tree}\n"
    venv.take_off(made)
    assert {p for p in demo.site(made).rglob("*") if p.is_file()} == before.keys()
