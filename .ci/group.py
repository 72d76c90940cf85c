"""Run a group of tests of CI, or name the earlier run that stands for it; tell at the end what was skipped, and why.

    python .ci/group.py run [--full] NAME COMMAND...
    python .ci/group.py skipped

A group that `.ci/groups.yaml` lists is not run where results/ci/groups.json holds a run of the same command that passed
over the same content of all that the group reads. That file is written here, after a run that passed, and is committed;
CI trusts it as far as its hash holds. A group that is not listed always runs. `skipped` ends with status 1 where a test
was skipped for a reason that `.ci/groups.yaml` does not list, in this run or in one that was taken.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sparkforge.core import console  # noqa: E402  the path comes first
from sparkforge.results.provenance import KEY, Run, digest  # noqa: E402  as above

RECORDS = Path("results", "ci", "groups.json")
DONE = Path("build", "ci")
# A line of pytest's summary, and one of `invoke patches.prove`.
_SKIPPED = re.compile(r"SKIPPED \[(\d+)\] (?:\S+: )?(.*)|.*: skipped (?:\S+) \(\w+\): \w+: (.*)")


def listed(root: Path) -> dict[str, Any]:
    """`.ci/groups.yaml`."""
    said: dict[str, Any] = yaml.safe_load((root / ".ci" / "groups.yaml").read_text())
    return said


def reads(root: Path, paths: Sequence[str | Sequence[str]]) -> list[str]:
    """Files of the checkout below these paths, tracked or not yet; `!path` leaves a part out, a list is its items.

    Raises:
        SystemExit: a path names nothing: it was moved, and what the group reads is no longer known.
    """
    flat = [one for each in paths for one in ([each] if isinstance(each, str) else each)]
    git = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]

    def below(path: str) -> set[str]:
        found = subprocess.run([*git, path], capture_output=True, text=True, check=True).stdout.split("\0")
        there = {name for name in found if name and (root / name).is_file()}
        return there or sys.exit(f".ci/groups.yaml: {path} names no file")

    left_out = set[str]().union(*(below(path[1:]) for path in flat if path.startswith("!")))
    return sorted(set[str]().union(*(below(path) for path in flat if not path.startswith("!"))) - left_out)


def key(root: Path, paths: Sequence[str | Sequence[str]], command: Sequence[str]) -> str:
    """Hash of all that decides what a group does: its files, its command, the Python and the kind of machine."""
    python = "{}.{}".format(*sys.version_info[:2])
    content = {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in reads(root, paths)}
    said = json.dumps([content, list(command), python, platform.machine()], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def known(root: Path) -> dict[str, dict[str, Any]]:
    """Runs that passed, by group; none where the file is missing or is not what a run wrote."""
    path = root / RECORDS
    if not path.is_file():
        return {}
    said = json.loads(path.read_bytes())
    if said.get(KEY, {}).get("sha256") != digest(said):
        print(f"{RECORDS} is not what a run wrote: nothing is taken from it")
        return {}
    found: dict[str, dict[str, Any]] = said["groups"]
    return found


def take(root: Path, name: str, command: Sequence[str], *, full: bool) -> int:
    """Run a group where nothing stands for it; the status of its command, 0 where an earlier run was taken."""
    paths = listed(root)["groups"].get(name, {}).get("reads")
    now = key(root, paths, command) if paths else ""
    records = known(root)
    record = records.get(name)
    if now and not full and record is not None and record["key"] == now:
        _keep(root, name, record, taken=True)
        print(f"{name}: taken from the run of {record['when']} at {record['commit'][:12]} ({record['seconds']:.0f} s)")
        return 0
    run = Run(__file__)
    os.environ.pop("SPARKFORGE_READS")  # what tests open is no source of the record
    begun, skips = time.monotonic(), Counter[str]()
    with subprocess.Popen(
        list(command), cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        for line in child.stdout or ():
            print(line, end="", flush=True)
            if found := _SKIPPED.match(line):
                skips[(found[2] or found[3]).strip()] += int(found[1] or 1)
    record = {
        "key": now,
        "when": run.begun,
        "seconds": round(time.monotonic() - begun, 1),
        "commit": str(run.commit["id"]),
        "command": list(command),
        "skips": dict(sorted(skips.items())),
    }
    _keep(root, name, record, taken=False)
    if now:
        kept = {one: each for one, each in known(root).items() if one != name}
        if child.returncode == 0 and key(root, paths, command) == now:
            kept[name] = record
        (root / RECORDS).parent.mkdir(parents=True, exist_ok=True)
        run.write(root / RECORDS, {"what": "groups of tests that passed in CI", "groups": dict(sorted(kept.items()))})
    return child.returncode


def _keep(root: Path, name: str, record: dict[str, Any], *, taken: bool) -> None:
    (root / DONE).mkdir(parents=True, exist_ok=True)
    (root / DONE / f"{name}.json").write_text(json.dumps({**record, "taken": taken}))


def skipped(root: Path) -> int:
    """Print which tests were skipped and what was taken from earlier runs; 1 where a reason is not listed."""
    allowed = [re.compile(one["reason"]) for one in listed(root)["skips"]]
    rows, wrong = [], []
    for path in sorted((root / DONE).glob("*.json")):
        record = json.loads(path.read_bytes())
        if record["taken"]:
            print(f"{path.stem}: not run now; taken from the run of {record['when']}")
        for reason, count in record["skips"].items():
            fits = any(one.fullmatch(reason) for one in allowed)
            rows.append((path.stem, str(count), "yes" if fits else "NO", reason))
            wrong += [] if fits else [reason]
    if rows:
        print(console.table(("group", "tests", "allowed", "reason"), rows))
    print(f"{len(rows)} reasons to skip, {len(wrong)} of them not listed in .ci/groups.yaml")
    return 1 if wrong else 0


def main() -> int:
    """Parse the words and do it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("--full", action="store_true", help="run it whatever is recorded")
    run.add_argument("name")
    run.add_argument("command", nargs=argparse.REMAINDER)
    verbs.add_parser("skipped")
    said = parser.parse_args()
    if said.verb == "skipped":
        return skipped(ROOT)
    return take(ROOT, said.name, said.command, full=said.full)


if __name__ == "__main__":
    sys.exit(main())
