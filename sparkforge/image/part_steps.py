"""The parts of an image, each a step: pins, trees, overlays, kernels, wheels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkforge.core.console import warn
from sparkforge.core.hashing import key_of
from sparkforge.core.paths import ROOT, shown
from sparkforge.core.pipeline import Pipeline
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.git.of_store import git_of, sound_git
from sparkforge.image.request import Request
from sparkforge.inputs import fetch, sources, toolchain
from sparkforge.inputs import lock as locks
from sparkforge.inputs.kernel_list import load_kernels
from sparkforge.inputs.recipes import Base, Stack
from sparkforge.inputs.wheelhouse import Wheelhouse, resolve
from sparkforge.inspect import kernel_audit
from sparkforge.kernels import library as kernels
from sparkforge.overlay import compute
from sparkforge.overlay.of_stack import of_tree
from sparkforge.patches import series, trees


@dataclass(frozen=True)
class Upstreams:
    """Trees and overlays of a build, by upstream; None where a dry run would have to make one."""

    trees: dict[str, trees.Tree | None]
    overlays: dict[str, compute.Overlay | None]


def upstreams(line: Pipeline, store: Store, stack: Stack, request: Request) -> Upstreams:
    """Pin, tree and overlay of each upstream.

    Raises:
        CheckFailed: a source is not what is pinned, a patch does not apply, or with `locked` the series does not
            lead to the tree that it records.
    """
    git = git_of(store)
    sound_git(store, git)
    reached: dict[str, trees.Tree | None] = {}
    overlays: dict[str, compute.Overlay | None] = {}
    for name, upstream in stack.upstreams.items():
        pin = line.step(
            f"source {name}",
            inputs={"sdist": upstream.sdist.sha256},
            look=lambda name=name, upstream=upstream: sources.find(git, name, upstream),  # type: ignore[misc]
            make=lambda name=name: sources.pin_commit(store, stack, name),  # type: ignore[misc]
            shows=lambda pin: f"commit {pin.commit[:12]}",
        )
        patches = series.load(ROOT / upstream.series)
        inputs: dict[str, str | None] = {patch.name: key_of(patch.raw) for patch in patches.patches}
        tree = line.step(
            f"series {name}",
            inputs={**inputs, f"source {name}": pin.tree if pin else None},
            look=lambda name=name, pin=pin, patches=patches: trees.known(store, git, name, pin, patches),  # type: ignore[misc]
            make=lambda name=name, pin=pin, patches=patches: trees.make(store, git, name, pin, patches),  # type: ignore[misc]
            shows=lambda tree: f"{len(tree.series.patches)} patches, tree {tree.id[:12]}",
        )
        if tree is not None and tree.id != tree.series.recorded:
            if request.locked:
                trees.recorded(tree)
            warn(f"{shown(tree.series.dir)} was edited: it leads to {tree.id[:12]}, not to the tree that it records")
        reached[name] = tree
        overlays[name] = _overlay(line, store, stack, name, tree)
    return Upstreams(reached, overlays)


def _overlay(line: Pipeline, store: Store, stack: Stack, name: str, tree: trees.Tree | None) -> compute.Overlay | None:
    upstream = stack.upstreams[name]
    asked = of_tree(tree, upstream) if tree else None
    return line.step(
        f"overlay {name}",
        inputs={f"series {name}": tree.id if tree else None, "mapping": key_of(msgspec.to_builtins(upstream.overlay))},
        look=lambda: compute.known(store, asked) if asked else None,
        # Steps are made only when every input is known.
        make=lambda: compute.compute(git_of(store), store, asked),  # type: ignore[arg-type]
        shows=lambda overlay: f"{len(overlay.manifest.entries)} files",
    )


def kernel_library(
    line: Pipeline, store: Store, stack: Stack, request: Request, base: Base
) -> kernels.KernelLibrary | None:
    """Our kernels for the archs and the platform, audited; None in a dry run that would have to compile them.

    Raises:
        CheckFailed: they do not compile, or the compiled code is not what was declared, or needs a newer base.
        EnvironmentLacks: no compiler.
    """
    declared = load_kernels(stack.kernels)
    chosen = toolchain.choose(request.platform)
    key = kernels.key(declared, request.archs, chosen)
    archs = ",".join(arch.text for arch in request.archs)

    def made() -> kernels.KernelLibrary:
        return kernels.build(store, declared, request.archs, request.platform)

    library = line.step(
        "kernels",
        inputs={
            "sources": key_of({source: declared.root / source for source in declared.sources}),
            "archs": archs,
            "platform": request.platform.oci,
            "toolchain": chosen.identity,
            "all": key,
        },
        look=lambda: made() if store.has("kernels", key) else None,
        make=made,
        shows=lambda library: f"{len(declared.kernels)} for {archs}, {library.library.stat().st_size} bytes",
    )
    sha256 = library.sha256 if library else None
    passed = store.path("audits", key_of("audit 2", sha256, archs, request.platform.oci, base.glibc))

    def audited() -> str:
        assert library is not None  # noqa: S101  `make` runs only when every input is known
        report = kernel_audit.audit(
            library.library,
            archs=request.archs,
            platform=request.platform,
            kernels=declared.kernels,
            inspector=toolchain.inspector(store),
            glibc=base.glibc,
        )
        report.require()
        with store.writing(passed.parent.name, passed.name) as folder:
            (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report.as_json())))
        return "sound"

    line.step(
        "audit",
        inputs={"kernels": sha256, "base": base.glibc},
        look=lambda: "sound" if passed.is_dir() else None,
        make=audited,
        shows=str,
    )
    return library


@dataclass(frozen=True)
class Wheels:
    """Wheels of an image: the locked runtime, the upstreams' own, and uv for the building machine."""

    runtime: Wheelhouse
    upstream: tuple[fetch.Wanted, ...]
    tools: Wheelhouse
    lock: Path

    @property
    def all(self) -> tuple[fetch.Wanted, ...]:
        """Every wheel, the upstreams' last."""
        return (*self.tools.wanted, *self.runtime.wanted, *self.upstream)

    @property
    def key(self) -> str:
        """Hash of all of it."""
        return key_of(self.runtime.key, self.tools.key, [item.file.sha256 for item in self.upstream])

    def missing(self, store: Store) -> list[fetch.Wanted]:
        """Wheels that the store does not have; those that it has are verified."""
        return [item for item in self.all if fetch.held(store, item) is None]


def wheels(store: Store, stack: Stack, request: Request, base: Base, upstream: tuple[fetch.Wanted, ...]) -> Wheels:
    """The wheels that an image is made of.

    Raises:
        BadInput: a lock is missing or not pinned.
        CheckFailed: a lock was edited or damaged.
        EnvironmentLacks: the index does not answer, where it was not asked before.
    """
    lock = stack.lock(request.target, request.platform, base.python)
    host = Platform.host()
    tools = ROOT / stack.locks / f"tools-{host.debian}.txt"
    for file in (lock, tools):
        if file.is_file():  # where it is not, reading it says so
            locks.verify(file)
    return Wheels(
        resolve(store, lock, request.platform, base.python, base.glibc),
        upstream,
        resolve(store, tools, host, base.python, base.glibc),
        lock,
    )
