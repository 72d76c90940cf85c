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

from sparkforge.core.store import Store
from sparkforge.inspect.sass import cubins, read_cubin

ROOT = Path(__file__).resolve().parents[2]
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


def needed(store: Store, platform: str) -> dict:
    """Symbols of the uint4 and uint8 objects that others refer to, by the object that does."""
    defined, wanted = defaultdict(set), defaultdict(set)
    for record in store.root.glob("aot-records/*/*.json"):
        said = json.loads(record.read_text())
        unit = store.root / "aot-objects" / said["object"] / "unit.o"
        source = next((Path(name).name for name in said["reads"] if name.endswith((".cu", ".cpp"))), "")
        lines = subprocess.run([NM[platform], str(unit)], capture_output=True, text=True, check=False).stdout
        for line in lines.splitlines():
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
    return {"objects for uint4 and uint8": sorted(out), "references to what only they define": dict(by)}


def main() -> None:
    """Read, count, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="linux/arm64", choices=NM)
    asked = parser.parse_args()
    store = Store.open()
    built = [
        one for one in store.root.glob("aot/*/aot.json") if json.loads(one.read_text())["platform"] == asked.platform
    ]
    tools = list(store.root.glob("toolchain/*/bin/cuobjdump"))
    if not built or not tools:
        sys.exit("no modules or no cuobjdump in the store: invoke aot.build, then aot.audit")
    newest = max(built, key=lambda one: one.stat().st_mtime)
    (library,) = newest.parent.glob(f"{MODULE}/*.so")
    result = {
        "command": ["tools/measure/module_facts.py", "--platform", asked.platform],
        "tree": json.loads(newest.read_text())["tree"],
        "module": MODULE,
        "traps": traps(library, tools[0].parent),
        **needed(store, asked.platform),
    }
    out = ROOT / f"results/flashinfer/module-facts-{asked.platform.partition('/')[2]}.json"
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
