"""Engines that work here, a base, and a small stack of made wheels to build images from."""

import importlib.util
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sparkforge.core.hashing import sha256_bytes
from sparkforge.core.paths import ROOT
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.engine.choose import candidates, proven
from sparkforge.engine.engine import Recipe
from sparkforge.git.of_store import git_of
from sparkforge.image import base, context
from sparkforge.inputs.recipes import File, Mapping, Upstream, load_stack
from sparkforge.overlay import compute

_spec = importlib.util.spec_from_file_location("image_wheels", Path(__file__).with_name("wheels.py"))
wheels = importlib.util.module_from_spec(_spec)
sys.modules["image_wheels"] = wheels
_spec.loader.exec_module(wheels)

UPSTREAM = Upstream(
    package="vllm",
    release="1.0",
    git="",
    commit="0" * 40,
    sdist=File("vllm-1.0.tar.gz", "0" * 64),
    wheels={},
    series="",
    overlay=(Mapping("vllm/", "vllm/"),),
)
SERVER = b"""import sys
def main():
    print("serving", *sys.argv[1:])
"""


@pytest.fixture(scope="session", params=["docker", "buildah"])
def engine(request):
    store = Store.open()
    for one in candidates(request.param):
        verdict = proven(store, one)
        if verdict.able:
            return one
        print(verdict.reason)
    pytest.skip(f"no {request.param} that works here: invoke setup")


@pytest.fixture(scope="session")
def root_image(engine):
    """The bootstrap base, from the user's own store: making one takes most of a minute."""
    return base.ensure(engine, Store.open(), load_stack(), "bootstrap", Platform.host())


@dataclass(frozen=True)
class Demo:
    """A stack in miniature: what a real context is assembled from."""

    folder: Path
    store: Store
    uv: context.ContextWheel
    runtime: tuple[context.ContextWheel, ...]
    upstream: tuple[context.ContextWheel, ...]
    platform: Platform

    @property
    def lock(self) -> Path:
        file = self.folder / "lock.txt"
        file.write_text("".join(f"{w.name.split('-')[0]}==1.0 --hash=sha256:{w.sha256}\n" for w in self.runtime))
        return file

    def overlay(self, word: str) -> Path:
        """The overlay of a patch of one line."""
        git = git_of(self.store)
        pin, tree = (self.tree(git, module(said)) for said in ("pin", word))
        found = compute.compute(git, self.store, compute.OverlayOf("vllm", UPSTREAM, pin, tree))
        return found.path

    def tree(self, git, content: bytes) -> str:
        blob = git.text("hash-object", "-w", "--stdin", stdin=content)
        folder = git.text("mktree", stdin=f"100644 blob {blob}\t__init__.py\n".encode())
        return git.text("mktree", stdin=f"040000 tree {folder}\tvllm\n".encode())

    def kernels(self) -> Path:
        folder = self.folder / "kernels" / "sparkforge_kernels"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("LIBRARY = 'none'\n")
        folder.chmod(0o700)
        return folder.parent

    def modules(self, word: str) -> context.ModuleFolder:
        """A module that stays the same, of sources whose tree has another id for every word."""
        folder = self.folder / "modules"
        (folder / "probe").mkdir(parents=True, exist_ok=True)
        (folder / "probe" / "probe.so").write_bytes(b"a module")
        (folder / "aot.json").write_text(json.dumps({"tree": word}))
        return context.ModuleFolder(folder, "f" * 64, tree_id(word))

    def assemble(self, word: str, *, ahead: bool = True) -> context.Context:
        return context.assemble(
            self.store,
            "demo",
            uv=self.uv,
            lock=self.lock,
            wheels=self.runtime,
            upstreams=self.upstream,
            overlays={"vllm": self.overlay(word)},
            kernels=self.kernels(),
            manifest={"stack": "demo", "target": "serve", "platform": self.platform.oci, "archs": ["12.1f"]},
            modules=self.modules(word) if ahead else None,
        )

    def recipe(self, word: str, on: base.BaseImage, tag: str, *, target="serve", build_base=None) -> Recipe:
        made = self.assemble(word)
        args = arguments(made, on, self.platform, build_base=build_base)
        return Recipe(
            made.path, ROOT / "Dockerfile", target, tag, self.platform, args, {"dev.sparkforge.stack": "demo"}
        )

    def on(self, platform: Platform) -> "Demo":
        """The same stack for another platform: one of its wheels is of that platform alone."""
        content = {"demo_native.py": f"MACHINE = {platform.machine!r}\n".encode()}
        tag = f"py3-none-manylinux_2_17_{platform.machine}"
        native = wheels.make(self.folder, "demo_native", "1.0", content, tag=tag)
        others = tuple(wheel for wheel in self.runtime if "native" not in wheel.name)
        return replace(self, platform=platform, runtime=(*others, native))


def tree_id(word: str) -> str:
    return sha256_bytes(word.encode())[:40]


def arguments(made, on, platform, *, build_base=None):
    from sparkforge.image.dockerfile import arguments as real  # noqa: PLC0415  what is under test

    return real(made, on, platform, archs=(), build="0123456789ab", build_base=build_base)


def module(word: str) -> bytes:
    return b"WORD = %r\n" % word + SERVER


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    runtime = (
        wheels.make(folder, "demo_runtime", "1.0", {"demo_runtime/__init__.py": b"NUMBER = 7\n"}),
        wheels.make(
            folder,
            "demo_cuda",
            "1.0",
            {
                "nvidia/cu13/bin/nvcc": b"#!/bin/sh\necho nvcc here\n",
                "nvidia/cu13/include/cuda.h": b"\n",
                "nvidia/cu13/nvvm/bin/cicc": b"\n",
                "nvidia/cu13/lib/libcudart.so.13": b"\n",
            },
        ),
    )
    vllm = wheels.make(folder, "vllm", "1.0", {"vllm/__init__.py": module("pin")}, scripts=["vllm = vllm:main"])
    store = Store.open(folder / "store")
    return Demo(folder, store, wheels.uv(folder), runtime, (vllm,), Platform.host()).on(Platform.host())
