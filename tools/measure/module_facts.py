"""Two facts of `fused_moe_120` that the README states: which kernels trap, and what cannot be left out.

    python tools/measure/module_facts.py [--platform linux/arm64]

After `invoke aot.build` and `aot.audit`; for arm64 with its cross binutils.

Traps: every kernel of the module that holds BPT.TRAP, with its length, its MMAs and the architecture tag in its name.
Not left out: symbols that only the objects for uint4 and uint8 weights define, and that other objects of it refer to.
Writes results/flashinfer/module-facts-<platform>.json; ends with status 1 where the store has no such module.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from common import ROOT, modules_of, opened_by

from sparkforge.core.store import Store
from sparkforge.inspect.sass import cubins, read_cubin
from sparkforge.results.provenance import Run

MODULE = "fused_moe_120"
LEFT_OUT = re.compile(r"moe_gemm_kernels_\w+_uint[48]\.cu$")
NM = {"linux/arm64": "aarch64-linux-gnu-nm", "linux/amd64": "nm"}


def traps(library: Path, inspector: Path) -> dict:
    """Kernels that hold a trap, counted by what they are."""
    kinds: Counter[str] = Counter()
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        for arch, cubin in cubins(library, inspector, Path(folder)):
            for one in read_cubin(cubin, arch, inspector):
                total += 1
                if one.traps:
                    tags = ",".join(sorted(set(re.findall(r"Sm\d+", one.name)))) or "no tag"
                    kinds[
                        f"{one.instructions} instructions, {one.traps} traps, {sum(one.mma.values())} MMAs, {tags}"
                    ] += 1
            cubin.unlink()
    return {"kernels": total, "kernels with a trap": sum(kinds.values()), "kinds": dict(kinds)}


def needed(store: Store, said: dict, platform: str) -> dict:
    """Symbols of the uint4 and uint8 objects of the module that others of it refer to, by the object that does."""
    defined, wanted = defaultdict(set), defaultdict(set)
    units = {unit["object"]: unit["path"] for unit in said["units"] if unit["module"] == MODULE}
    for key, path in units.items():
        source = Path(path).name
        unit = store.root / "aot-objects" / key / "unit.o"
        read = subprocess.run([NM[platform], str(unit)], capture_output=True, text=True, check=False)
        if read.returncode or not read.stdout:
            sys.exit(f"{NM[platform]} cannot read the object of {path}: {read.stderr.strip() or 'it names no symbol'}")
        for line in read.stdout.splitlines():
            *_, kind, symbol = line.split()
            if kind == "U":
                wanted[symbol].add(source)
            elif kind in "TWVDBRu":
                defined[symbol].add(source)
    by: Counter[str] = Counter()
    for symbol, sources in wanted.items():
        if defined[symbol] and all(LEFT_OUT.match(one) for one in defined[symbol]):
            by.update(one for one in sources if not LEFT_OUT.match(one))
    out = {one for sources in defined.values() for one in sources if LEFT_OUT.match(one)}
    found = {"objects for uint4 and uint8": sorted(out), "references to what only they define": dict(by)}
    return {"objects read": len(units), **found}


def main() -> None:
    """Read, count, write."""
    run = Run(__file__)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="linux/arm64", choices=NM)
    asked = parser.parse_args()
    store = Store.open()
    tools = list(store.root.glob("toolchain/*/bin/cuobjdump"))
    if not tools:
        sys.exit("no cuobjdump in the store: invoke aot.audit")
    folder, said = modules_of(store, asked.platform)
    opened_by(run, store, said)
    (library,) = folder.glob(f"{MODULE}/*.so")
    result = {
        "tree": said["tree"],
        "module": MODULE,
        "traps": traps(library, tools[0].parent),
        **needed(store, said, asked.platform),
    }
    out = ROOT / f"results/flashinfer/module-facts-{asked.platform.partition('/')[2]}.json"
    run.write(out, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
