"""The content of `aot.json`, from a finished build."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkforge.aot import link, plan
from sparkforge.aot.objects import CompiledObject
from sparkforge.aot.tools import ModuleTools
from sparkforge.core.arch import Arch
from sparkforge.core.hashing import sha256_file
from sparkforge.core.proc import run
from sparkforge.inputs import toolchain
from sparkforge.inspect import elf, findings
from sparkforge.inspect import module_facts as facts
from sparkforge.overlay.compute import Overlay


@dataclass(frozen=True)
class MadeModule:
    """A module with its objects, in the order of its units, and its library."""

    module: plan.ModulePlan
    objects: Sequence[CompiledObject]
    linked: link.LinkedModule


def facts_of(
    folder: Path,
    made: Sequence[MadeModule],
    overlay: Overlay,
    archs: Sequence[Arch],
    ready: ModuleTools,
    *,
    left_out: dict[str, list[str]],
) -> facts.AotFacts:
    """Facts about the folder of a build.

    Args:
        folder: holds NAME/NAME.so.
        made: the modules.
        overlay: that the sources came from.
        archs: that they were compiled for.
        ready: what compiled them.
        left_out: modules that were not compiled, with the parts that need them.
    """
    reads = {one.module.name: _of_flashinfer(one.objects) for one in made}
    modules = [_module(folder, one, reads[one.module.name]) for one in made]
    return facts.AotFacts(
        format=facts.FORMAT,
        key=facts.key_of_modules(modules),
        platform=ready.platform.oci,
        archs=[arch.text for arch in archs],
        tree=overlay.manifest.tree,
        toolchain=ready.identity,
        versions={
            "nvcc": toolchain.recipe().nvcc,
            "tvm_ffi": toolchain.recipe().tvm_ffi,
            "cxx": run([ready.cxx, "--version"]).text.splitlines()[0],
            "flashinfer": overlay.manifest.release,
        },
        modules=modules,
        units=[_unit(unit, one) for each in made for unit, one in zip(each.module.units, each.objects, strict=True)],
        reads=dict(sorted(item for of_one in reads.values() for item in of_one.items())),
        left_out=left_out,
    )


def _unit(unit: plan.CompileUnit, made: CompiledObject) -> facts.BuiltUnit:
    return facts.BuiltUnit(
        module=unit.module,
        path=unit.source,
        object=made.key,
        seconds=made.cost.seconds,
        cpu_seconds=made.cost.cpu_seconds,
        peak_bytes=made.cost.peak_bytes,
        size=made.path.stat().st_size,
        reads=len(_of_flashinfer([made])),
    )


def _module(folder: Path, made: MadeModule, reads: Mapping[str, str]) -> facts.BuiltModule:
    name = made.module.name
    path = folder / name / f"{name}.so"
    library = elf.read_elf(path)
    return facts.BuiltModule(
        name=name,
        file=str(path.relative_to(folder)),
        sha256=sha256_file(path),
        size=path.stat().st_size,
        exports=link.exports(library),
        needed=list(library.needed),
        versions=findings.newest(library.versions),
        sources=facts.sources_hash(reads),
        link_seconds=made.linked.seconds,
    )


def _of_flashinfer(objects: Iterable[CompiledObject]) -> dict[str, str]:
    """What objects were made from of FlashInfer's own files and of those that it generated."""
    return {name: sha256 for one in objects for name, sha256 in one.reads.items() if not name.startswith("/")}
