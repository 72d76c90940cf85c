"""What FlashInfer's modules cost to compile when nothing is compiled yet.

    python tools/measure/aot_modules.py [--aot needed] [--arch 12.1f] [--platform linux/amd64] [--jobs 2]

Compiles every object anew, in a store of its own that shares downloads, toolchain and environment with the user's.
Writes results/flashinfer/aot-needed-<arch>-<platform>.json, or aot-<arch>-<platform>.json for `--aot all`.
`modules[].sources` is one hash over every file of FlashInfer that a module was made from; the files themselves are in
`provenance.reads`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from sparkforge.core.hashing import key_of
from sparkforge.core.paths import RESULTS
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.git import objects
from sparkforge.git.of_store import git_of
from sparkforge.image import module_step, request
from sparkforge.inputs.recipes import Stack, load_stack
from sparkforge.inspect.module_facts import AotFacts, BuiltUnit
from sparkforge.overlay.compute import Overlay
from sparkforge.results.provenance import Run
from sparkforge.serving import carried


def beside(store: Store, folder: Path) -> Store:
    """A store without modules that shares everything else with another one."""
    for kind in store.root.iterdir():
        if not kind.name.startswith(("aot", "locks", "last")):
            (folder / kind.name).symlink_to(kind)
    return Store.open(folder)


def totals(units: Iterable[BuiltUnit]) -> dict[str, Any]:
    """What objects cost, each counted once."""
    each = {unit.object: unit for unit in units}.values()
    return {
        "objects": len(each),
        "cpu_seconds": round(sum(unit.cpu_seconds for unit in each), 1),
        "seconds_of_compilers": round(sum(unit.seconds for unit in each), 1),
        "peak_bytes": max(unit.peak_bytes for unit in each),
    }


def content(facts: AotFacts, overlay: Overlay) -> dict[str, Any]:
    """What is said of a build.

    `series` lists what the series changes of FlashInfer's files and whether any module read it.
    """
    modules = []
    for module in facts.modules:
        units = [unit for unit in facts.units if unit.module == module.name]
        cost = {"units": len(units), "object_keys": key_of([unit.object for unit in units]), **totals(units)}
        modules.append({**msgspec.to_builtins(module), **cost})
    return {
        "what": "FlashInfer's modules for gpt-oss, compiled ahead of time, from nothing",
        "platform": facts.platform,
        "archs": facts.archs,
        "versions": facts.versions,
        "toolchain": facts.toolchain,
        "tree": facts.tree,
        "key": facts.key,
        "totals": {
            **totals(facts.units),
            "modules": len(modules),
            "sources": len(facts.units),
            "link_seconds": round(sum(module.link_seconds for module in facts.modules), 1),
            "size": sum(module.size for module in facts.modules),
        },
        "left_out": facts.left_out,
        "modules": modules,
        "units": [msgspec.to_builtins(unit) for unit in sorted(facts.units, key=lambda unit: -unit.cpu_seconds)],
        "series": {
            one.path: {"sha256": one.sha256, "read": one.path in facts.reads} for one in overlay.manifest.entries
        },
    }


def sources(store: Store, stack: Stack, facts: AotFacts) -> dict[str, str]:
    """Git's blob id of each file of the tree that a module read, by the tree's own path."""
    folders = stack.upstreams["flashinfer"].overlay
    in_tree = {}
    for path in facts.reads:
        home = next(
            (one for one in sorted(folders, key=lambda one: -len(one.target)) if path.startswith(one.target)), None
        )
        if home is not None:
            in_tree[home.source + path.removeprefix(home.target)] = path
    held = objects.entries(git_of(store), facts.tree)
    return {f"flashinfer:{path}": held[path].blob for path in in_tree if path in held}


def main() -> None:
    """Compile, and write what it cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aot", choices=("needed", "all"), default="needed")
    parser.add_argument("--arch", default="12.1f")
    parser.add_argument("--platform", default=Platform.host().oci)
    parser.add_argument("--jobs", type=int, default=0)
    words = parser.parse_args()
    run = Run(__file__)
    stack, own = load_stack(), Store.open()
    asked = request.parse(stack, **vars(words))
    module_step.ModuleJob(own, stack, asked).python()  # so that the stores share it
    with tempfile.TemporaryDirectory(prefix="measure-aot-", dir=own.root) as folder:
        store = beside(own, Path(folder))
        job = module_step.ModuleJob(store, stack, asked, carried.modules())
        wanted = job.wanted()
        made = job.build(wanted)
        found = content(made.facts, wanted.overlay)
        run.sources.merge(sources(store, stack, made.facts), {"flashinfer": made.facts.tree})
        found |= {"seconds": round(made.seconds, 1), "compiled": made.compiled, "jobs": words.jobs}
    name = "-".join([*([words.aot] if words.aot != "all" else []), *found["archs"], asked.platform.debian])
    run.write(RESULTS / "flashinfer" / f"aot-{name}.json", found)
    print(f"{found['totals']}, {found['seconds']} s")


if __name__ == "__main__":
    main()
