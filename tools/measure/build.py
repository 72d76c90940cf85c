"""Time of a build with nothing to do, and of a one-line edit of a vLLM patch to the finished image.

    python tools/measure/build.py [--target cpu] [--engine docker] [--samples 5]

Works in a clone on the user's own store, so the image must have been built before (it is, if not). Writes
results/build/<target>-<engine>.json with every sample. The edit adds a word to a comment or docstring that a patch
adds.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT, build, clone

from sparkforge.core.store import Store
from sparkforge.engine import choose
from sparkforge.image.layers import difference
from sparkforge.results.provenance import Run


def edit(checkout: Path, word: str) -> tuple[str, str, str]:
    """Put a word into the first sentence that the last patch adds to a Python file; the patch and the new line."""
    folder = checkout / "patches" / "vllm" / "0.21.0"
    names = [name for name in (folder / "series").read_text().split() if (folder / name).is_file()]
    for name in reversed(names):  # no later patch can rest on the line
        patch = folder / name
        lines = patch.read_text().split("\n")
        file = ""
        for number, line in enumerate(lines):
            file = line.removeprefix("+++ b/") if line.startswith("+++ ") else file
            if (
                file.endswith(".py")
                and re.match(r'^\+ *(# [a-z]|""")', line, re.IGNORECASE)
                and not line.endswith('"""')
            ):
                lines[number] = f"{line} {word}"
                patch.write_text("\n".join(lines))
                return name, file, lines[number][1:].strip()
    sys.exit("no patch adds a sentence to edit")


def main() -> None:
    """Measure, and write what was measured."""
    run = Run(__file__)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--engine", default="docker")
    parser.add_argument("--samples", type=int, default=5)
    said = parser.parse_args()
    words = ("--target", said.target, "--engine", said.engine)
    engine, _ = choose.choose(Store.open(), said.engine)
    with tempfile.TemporaryDirectory(prefix="sparkforge-measure-") as folder:
        checkout = clone(Path(folder) / "checkout")
        _, first, _ = build(checkout, *words, tells=True)
        tag = first["image"]
        nothing: list[dict[str, Any]] = []
        for _ in range(said.samples):
            seconds, made, _ = build(checkout, *words)
            if not all(step["cached"] for step in made["steps"]):
                sys.exit("a build with nothing to do did something")
            nothing.append({"seconds": seconds, "inside": made["seconds"]})
        edits: list[dict[str, Any]] = []
        for number in range(said.samples):
            before = engine.layers(tag)
            patch, file, line = edit(checkout, f"({number + 1})")
            seconds, made, _ = build(checkout, *words)
            changed = difference(before, engine.layers(tag))
            edits.append(
                {
                    "seconds": seconds,
                    "patch": patch,
                    "not_cached": [step["name"] for step in made["steps"] if not step["cached"]],
                    "layers_kept": len(changed.kept),
                    "layers_new": [{"made_by": layer.made_by[:80], "bytes": layer.size} for layer in changed.new],
                    "new_bytes": changed.new_bytes,
                }
            )
            read = _read(engine.program, engine.name, tag, file)
            if line not in read:
                sys.exit(f"the image does not hold the edited line of {file}")
    build(ROOT, *words)  # the image that was there before
    result = {
        "what": "no-op build and one-line patch edit to image",
        "engine": engine.prove().reason,
        "target": said.target,
        "no_op": nothing,
        "edit": edits,
    }
    out = ROOT / "results" / "build" / f"{said.target}-{said.engine}.json"
    run.write(out, result)
    for name, samples in (("no-op build", nothing), ("one-line edit to image", edits)):
        times = [sample["seconds"] for sample in samples]
        print(f"{name}: {statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})")
    print(f"new layers: {edits[-1]['new_bytes']} bytes in {len(edits[-1]['layers_new'])}")


def _read(program: str, name: str, tag: str, file: str) -> str:
    where = f"/opt/venv/lib/python3.11/site-packages/{file}"
    if name == "docker":
        argv = [program, "run", "--rm", "--entrypoint", "/bin/cat", tag, where]
        return subprocess.check_output(argv, text=True)
    made = subprocess.check_output([program, "from", tag], text=True).strip()
    try:
        return subprocess.check_output(
            [program, "run", "--isolation", "chroot", made, "--", "/bin/cat", where], text=True
        )
    finally:
        subprocess.run([program, "rm", made], check=False, capture_output=True)


if __name__ == "__main__":
    main()
