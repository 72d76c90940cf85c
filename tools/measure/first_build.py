"""Time of the README's first command for a new user: a clone, an environment, an empty store, the whole image.

    python tools/measure/first_build.py [--target serve] [--arch 12.1f] [--tag NAME] [--folder FOLDER]

Writes results/build/first-<target>-docker.json: wall seconds of each command and of each step of the build, CPU seconds
of what ran as its children (not of the engine's daemon), and the sizes of store and image. The engine keeps caches, so
on a machine that has built before, the image step is shorter than on a new one. Clone, store and image are removed
afterwards.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from common import ROOT, clone

from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store, remove
from sparkforge.engine import choose
from sparkforge.image import request
from sparkforge.inputs.recipes import load_stack
from sparkforge.results.provenance import Run

STEP = re.compile(r"^\[ *(done|cached|none) *\] ([^:]+)(?:: (.*?))?(?: \(([0-9.]+) s\))?$")


def timed(words: list[str | Path], checkout: Path, env: dict[str, str]) -> tuple[dict[str, Any], str]:
    """Run a command of the README; what it took, and what it said to people."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(words, cwd=checkout, env=env, stderr=subprocess.PIPE, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode:
        sys.exit(f"{words} ended with status {done.returncode}\n{done.stderr}")
    return {"seconds": round(time.monotonic() - begun, 1), "cpu_seconds": round(cpu, 1)}, done.stderr


def steps(said: str) -> list[dict[str, Any]]:
    """Steps of a build, from what it said to people."""
    found = (STEP.match(line) for line in said.splitlines())
    return [{"step": one[2], "state": one[1], "says": one[3], "seconds": float(one[4] or 0)} for one in found if one]


def size(folder: Path) -> int:
    """Bytes that a folder takes on disk, hard links once."""
    seen = {(status.st_dev, status.st_ino): status.st_blocks * 512 for status in map(os.lstat, folder.rglob("*"))}
    return sum(seen.values())


def main() -> None:
    """Measure, and write what was measured."""
    run = Run(__file__)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="serve")
    parser.add_argument("--arch", default="12.1f")
    parser.add_argument("--tag", default="localhost/sparkforge:first-build")
    parser.add_argument(
        "--folder", type=Path, help="where clone and store stand; a temporary folder where none is named"
    )
    said = parser.parse_args()
    asked = request.parse(load_stack(), arch=said.arch, target=said.target, tag=said.tag)
    with tempfile.TemporaryDirectory(prefix="sparkforge-first-", dir=said.folder) as folder:
        checkout, store = clone(Path(folder) / "checkout"), Store.open(Path(folder) / "store")
        env = {**os.environ, "SPARKFORGE_STORE": str(store.root)}
        env.pop("PYTHONPATH", None)
        programs = checkout / ".venv" / "bin"
        took = {}
        took["venv"], _ = timed([sys.executable, "-m", "venv", ".venv"], checkout, env)
        took["install"], _ = timed([programs / "pip", "install", "--quiet", "-e", "."], checkout, env)
        words = ["build", "--arch", said.arch, "--target", said.target, "--tag", said.tag]
        took["setup build"], told = timed([programs / "invoke", "setup", *words], checkout, env)
        took["again"], _ = timed([programs / "invoke", *words], checkout, env)
        engine, why = choose.choose(store, "docker")
        facts = msgspec.json.decode((store.root / "builds" / f"{said.tag.rpartition(':')[2]}.json").read_bytes())
        result = {
            "what": "the first command of the README in a new clone, with an empty store",
            "engine": why,
            "platform": Platform.host().oci,
            "target": asked.target,
            "archs": [arch.text for arch in asked.archs],
            "commands": took,
            "steps": steps(told),
            "store_bytes": size(store.root),
            "image_bytes": sum(layer.size or 0 for layer in engine.layers(said.tag)),
            "facts": facts,
        }
        run.write(ROOT / "results" / "build" / f"first-{said.target}-docker.json", result)
        engine.untag(said.tag)
        remove(store.root)
    print(took)


if __name__ == "__main__":
    main()
