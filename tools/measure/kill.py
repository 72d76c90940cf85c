"""Kill a real build again and again, downloads and image steps included; then let it finish and compare.

    python tools/measure/kill.py [--kills 30] [--target cpu] [--engine docker] [--longest 40]

One store is built without a break (the reference) and one is killed with SIGKILL, the whole process group, after a
random time, over and over; then it is let finish. Tree ids and manifest must be equal, and nothing may be left that
neither the reference has nor a build removes. Both stores begin empty, so everything is downloaded twice. A build that
ends before its kill does not count, and its store is emptied. Writes results/build/kill.json.

With --image-only both stores begin as copies of the user's own and the engine's build cache is emptied, so that every
kill meets the image step; writes results/build/kill-image.json.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import INVOKE, ROOT, build, clone, environment

from sparkforge.core.store import Store
from sparkforge.engine import choose
from sparkforge.results.provenance import Run

# What a build may leave besides results: locks (held by nobody), stamps of files that were verified, records.
_NOT_RESULTS = ("locks/", "last/", "contexts/", "builds/")
_KEPT = (
    *("files", "git", "git.stamp", "trees", "overlay", "kernels", "kernel-objects", "toolchain", "audits"),
    *("wheelhouse", "requirements", "bases", "proofs"),
)


def listing(store: Path) -> set[str]:
    """Results in a store, by name."""
    found = set()
    for path in store.rglob("*"):
        name = str(path.relative_to(store))
        if (
            path.is_file()
            and not name.startswith((*_NOT_RESULTS, "git/"))
            and not name.endswith((".stamp", ".verified"))
        ):
            found.add(name)
    return found


def killed(checkout: Path, words: list[str], store: Path, after: float) -> dict[str, Any]:
    """Start a build and kill it after some seconds; at which step it was."""
    log = store.parent / "log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [*INVOKE, "build", *words],
            cwd=checkout,
            env=environment(checkout, store),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            child.wait(timeout=after)
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
        if not ended:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("[")]
    # A step that has ended is not the one that was killed: that had not said anything yet.
    at = lines[-1] if lines else "start"
    at = at if at.startswith(("[....]", "start")) else f"after {at}"
    return {"after": round(after, 2), "ended": ended, "status": child.returncode, "at": at}


def _step(kill: dict[str, Any]) -> str:
    """Name of the step that a kill met."""
    return str(kill["at"]).partition("] ")[2].partition(":")[0]


def begin(store: Path, said: argparse.Namespace, tag: str) -> None:
    """A store to begin with: empty, or the user's own by hard links; and no image, so that its step is met too."""
    store.mkdir()
    engine, _ = choose.choose(Store.open(), said.engine)
    subprocess.run([engine.program, "rmi", "--force", tag], check=False, capture_output=True)
    if said.image_only:
        for name in _KEPT:
            if (Store.open().root / name).exists():
                subprocess.run(["cp", "-al", str(Store.open().root / name), str(store / name)], check=True)
        if engine.name == "docker":
            subprocess.run([engine.program, "builder", "prune", "--all", "--force"], check=True, capture_output=True)


def main() -> None:
    """Kill, finish, compare."""
    run = Run(__file__)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--engine", default="docker")
    parser.add_argument("--longest", type=float, default=40.0, help="seconds until a kill, at most")
    parser.add_argument("--image-only", action="store_true", help="begin with everything but the image")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    said = parser.parse_args()
    dice = random.Random(said.seed)
    tag = f"localhost/sparkforge:kill-test{'-image' if said.image_only else ''}"
    words = ["--target", said.target, "--engine", said.engine, "--tag", tag]
    folder = Path(tempfile.mkdtemp(prefix="sparkforge-kill-", dir=os.environ.get("SPARKFORGE_SCRATCH")))
    checkout = clone(folder / "checkout")
    store, reference = folder / "store", folder / "reference"
    begin(store, said, tag)
    kills: list[dict[str, Any]] = []
    longest = said.longest
    while len(kills) < said.kills:
        one = killed(checkout, words, store, dice.uniform(0.3, longest))
        # A step that is longer than every kill so far would never end: wait longer until one gets past it.
        stuck = len(kills) > 1 and {_step(kills[-1]), _step(kills[-2])} == {_step(one)}
        longest = longest * 1.5 if stuck else said.longest
        if one["ended"]:
            if one["status"]:
                sys.exit(f"a resumed build failed: {one['at']}")
            shutil.rmtree(store)
            begin(store, said, tag)
            continue
        kills.append(one)
        print(len(kills), one, flush=True)
    begun = time.monotonic()
    _, resumed, _ = build(checkout, *words, store=store, tells=True)
    resume = time.monotonic() - begun
    begin(reference, said, tag)
    seconds, whole, _ = build(checkout, *words, store=reference)
    same = resumed["facts"] == whole["facts"]
    stray = sorted(listing(store) - listing(reference))
    missing = sorted(listing(reference) - listing(store))
    result = {
        "what": "SIGKILL at random moments of a real build, then resumed",
        "compared": "result files of the stores; not locks, contexts, build records, containers, temporary folders",
        "seed": said.seed,
        "kills": kills,
        "resume_seconds": resume,
        "reference_seconds": seconds,
        "same_manifest": same,
        "trees": {name: upstream["tree"] for name, upstream in whole["facts"]["upstreams"].items()},
        "stray": stray,
        "missing": missing,
    }
    run.write(ROOT / "results" / "build" / f"kill{'-image' if said.image_only else ''}.json", result)
    shutil.rmtree(folder)
    print(f"{len(kills)} kills, resumed in {resume:.0f} s; manifest {'equal' if same else 'DIFFERENT'}; stray: {stray}")
    sys.exit(0 if same and not stray and not missing else 1)


if __name__ == "__main__":
    main()
