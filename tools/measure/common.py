"""What the measurements share: a clone of this checkout to edit in, one build in it, modules that were compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sparkforge.core.store import Store
from sparkforge.results.proofs import files_of
from sparkforge.results.provenance import TOLD, Run

ROOT = Path(__file__).resolve().parent.parent.parent
# `invoke`, and when it has ended, which sources it opened.
TELLING = (
    "import atexit, sys; from sparkforge.results import provenance; atexit.register(provenance.tell);"
    " from invoke.main import program; sys.argv[0] = 'invoke'; sys.exit(program.run())"
)
INVOKE = (sys.executable, "-c", TELLING)


def clone(into: Path) -> Path:
    """A clone of the checkout's HEAD, so that an edit for a measurement is nobody's edit."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(into)], check=True)
    return into


def environment(checkout: Path, store: Path | None = None) -> dict[str, str]:
    """Environment in which a clone's own library runs, on a store."""
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    return env if store is None else {**env, "SPARKFORGE_STORE": str(store)}


def build(
    checkout: Path, *words: str, store: Path | None = None, tells: bool = False
) -> tuple[float, dict[str, Any], str]:
    """Build in a clone; wall seconds, the manifest, and what was said to people.

    With `tells` it says which sources it opened, which takes time: not for a build that is timed.
    """
    env = environment(checkout, store)
    if not tells:
        env.pop(TOLD, None)
    begun = time.monotonic()
    done = subprocess.run(
        [*INVOKE, "build", *words, "--json"],
        cwd=checkout,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - begun
    if done.returncode:
        sys.exit(f"the build failed with status {done.returncode}\n{done.stderr}")
    return seconds, json.loads(done.stdout), done.stderr


def modules_of(store: Store, platform: str, arch: str = "12.1f") -> tuple[Path, dict[str, Any]]:
    """The newest set of modules in the store for a platform: its folder, and what aot.json says."""
    found = []
    for path in store.root.glob("aot/*/aot.json"):
        said = json.loads(path.read_bytes())
        if said["platform"] == platform and arch in said["archs"]:
            found.append((path.stat().st_mtime, path.parent, said))
    if not found:
        sys.exit(f"no modules for {arch}, {platform} in the store: invoke aot.build --platform {platform}")
    return max(found, key=lambda one: one[0])[1:]


def opened_by(run: Run, store: Store, modules: dict[str, Any]) -> None:
    """Add to a run the files of FlashInfer that a build of modules read."""
    tree = modules["tree"]
    run.of_tree("flashinfer", tree, files_of(store, tree), modules["reads"])
