"""A build of modules as a result: what each source cost, and what the proof stands on.

    results/flashinfer/aot-<arch>-<platform>.json, or aot-needed-<arch>-<platform>.json

`modules[].sources` is one hash over every file of FlashInfer that a module was made from. `series` lists what the
series changes of it, with the content that it had and whether any module read it: where one of the files that were read
is now another or gone, or a Python file that names modules or writes commands, another proof is needed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sparkforge.aot.modules import Modules, Wanted
from sparkforge.aot.selection import AotChoice
from sparkforge.core.arch import Arch
from sparkforge.core.hashing import key_of
from sparkforge.core.paths import RESULTS
from sparkforge.core.platforms import Platform
from sparkforge.inspect.module_facts import Facts
from sparkforge.overlay.compute import Overlay, OverlayEntry

# Beside the sources themselves: what names the modules, writes their commands and generates sources.
_DECIDES = ("flashinfer/jit/", "flashinfer/aot_gpt_oss.py", "flashinfer/compilation_context.py")


def path_of(archs: Sequence[Arch], platform: Platform, choice: AotChoice) -> Path:
    """Where the result of a build stands."""
    names = [*([choice] if choice != "all" else []), *(arch.text for arch in archs), platform.debian]
    return RESULTS / "flashinfer" / f"aot-{'-'.join(names)}.json"


def record(made: Modules, wanted: Wanted, command: str) -> bytes:
    """The result of a build, as JSON.

    Args:
        made: the build.
        wanted: what was asked for.
        command: that a person would type for it.
    """
    facts = made.facts
    units = sorted(facts.units, key=lambda unit: -unit.cpu_seconds)
    objects = {unit.object: unit for unit in units}.values()
    said: dict[str, Any] = {
        "what": "FlashInfer's modules for gpt-oss, compiled ahead of time",
        "command": command,
        "platform": facts.platform,
        "host": Platform.host().oci,
        "archs": facts.archs,
        "cores": os.cpu_count(),
        "versions": facts.versions,
        "toolchain": facts.toolchain,
        "tree": facts.tree,
        "key": facts.key,
        "totals": {
            "modules": len(facts.modules),
            "sources": len(units),
            "objects": len(objects),
            "cpu_seconds": round(sum(unit.cpu_seconds for unit in objects), 1),
            "seconds_of_compilers": round(sum(unit.seconds for unit in objects), 1),
            "link_seconds": round(sum(module.link_seconds for module in facts.modules), 1),
            "peak_bytes": max(unit.peak_bytes for unit in units),
            "size": sum(module.size for module in facts.modules),
        },
        "left_out": facts.left_out,
        "modules": [_module(facts, module.name, msgspec.to_builtins(module)) for module in facts.modules],
        "units": [msgspec.to_builtins(unit) for unit in units],
        "series": series(facts, wanted.overlay),
    }
    return msgspec.json.format(msgspec.json.encode(said), indent=1) + b"\n"


def series(facts: Facts, overlay: Overlay) -> dict[str, dict[str, Any]]:
    """What the series changes of what modules are made of and by: its content, None where it is gone, whether read."""
    return {entry.path: _entry(facts, entry) for entry in overlay.manifest.entries if _matters(facts, entry.path)}


def _entry(facts: Facts, entry: OverlayEntry) -> dict[str, Any]:
    return {"sha256": entry.sha256, "read": entry.path in facts.reads}


def _matters(facts: Facts, path: str) -> bool:
    return path in facts.reads or path.startswith((*_DECIDES, "flashinfer/data/"))


def _module(facts: Facts, name: str, said: dict[str, Any]) -> dict[str, Any]:
    units = [unit for unit in facts.units if unit.module == name]
    cost = {
        "units": len(units),
        "cpu_seconds": round(sum(unit.cpu_seconds for unit in units), 1),
        "peak_bytes": max(unit.peak_bytes for unit in units),
        "objects": key_of([unit.object for unit in units]),
    }
    return {**said, **cost}
