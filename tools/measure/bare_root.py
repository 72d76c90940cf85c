"""Tests and proofs on a machine with Debian 12, Python and git alone: no nvcc, no CUDA, no compiler at first.

    python tools/measure/bare_root.py [--mount FOLDER ...] [--json results/ci/bare-root.json]

Makes such a root with mmdebstrap, runs it as a container of Docker with the host's network, clones HEAD of this
checkout into it and does there what a new contributor does. `--mount` names what pip's settings need (an index that is
a folder, say). Every step is recorded with its status and time; the first that fails ends the run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from sparkforge.image.bootstrap import SUITE, mirrors, proxies  # noqa: E402  the path comes first
from sparkforge.results.provenance import Run, plain  # noqa: E402  as above

NAME = "sparkforge-bare-root"
INCLUDED = "python3,python3-venv,git,ca-certificates"
STEPS = {
    "nothing but Debian, Python and git": (
        "cat /etc/debian_version && python3 --version && git --version && ! command -v nvcc && ! command -v g++"
        " && ! command -v docker && ! test -e /usr/local/cuda && ! test -e /opt/cuda"
    ),
    "install": "python3 -m venv .venv && .venv/bin/pip install -qq -e '.[dev]'",
    "compilers": "apt-get update -q && apt-get install -y -q --no-install-recommends g++ g++-aarch64-linux-gnu",
    "lint, types and fast tests": ".venv/bin/invoke test --fast",
    "tests that compile": ".venv/bin/invoke test --group compile",
    "no CUDA came with them": "! command -v nvcc && ! test -e /usr/local/cuda",
    "patches.prove": ".venv/bin/invoke patches.prove --jobs 2",
}


def made(folder: Path) -> str:
    """Id of a Docker image of the bare root."""
    tar = folder / "root.tar"
    options = [f"--aptopt={option}" for option in proxies()]
    words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={INCLUDED}", *options, SUITE, str(tar)]
    subprocess.run([*words, *mirrors()], check=True)
    return subprocess.check_output(["docker", "import", str(tar), f"{NAME}:latest"], text=True).strip()


def started(mounts: list[str]) -> None:
    """The container, with a clone of HEAD in /checkout."""
    shares = ["--network", "host"]
    for one in mounts:
        shares += ["--volume", f"{one}:{one}:ro"]
    for name in (name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")):
        shares += ["--env", name]
    subprocess.run(["docker", "run", "--detach", "--name", NAME, *shares, NAME, "sleep", "infinity"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder, "head.bundle")
        subprocess.run(["git", "bundle", "create", "--quiet", bundle, "HEAD"], cwd=ROOT, check=True)
        subprocess.run(["docker", "cp", bundle, f"{NAME}:/head.bundle"], check=True)
    inside("git clone --quiet /head.bundle /checkout", cwd="/")


def inside(command: str, cwd: str = "/checkout") -> tuple[int, float, str]:
    """Run a command in the container; status, seconds and what it said."""
    begun = time.monotonic()
    words = ["docker", "exec", "--workdir", cwd, "--env", "LC_ALL=C.UTF-8", NAME, "sh", "-c", command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, time.monotonic() - begun, done.stdout


def main() -> None:
    """Make the root, take the steps, and write what came of them after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mount", action="append", default=[], help="folder or file that pip's settings name")
    parser.add_argument("--leave-out", action="append", default=[], choices=STEPS, help="a step; the result then fails")
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "ci" / "bare-root.json")
    said = parser.parse_args()
    said.json.parent.mkdir(parents=True, exist_ok=True)
    run = Run(__file__)
    subprocess.run(["docker", "rm", "--force", NAME], check=False, capture_output=True)
    steps: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix=f"{NAME}-") as folder:
        image = made(Path(folder))
    try:
        started(said.mount)
        for name, command in STEPS.items():
            if name in said.leave_out:
                steps.append({"step": name, "command": command, "status": None, "seconds": 0.0, "ends": ["left out"]})
                continue
            print(f"=== {name}", flush=True)
            code, seconds, out = inside(command)
            print(out[-4000:], flush=True)
            ends = [plain(line) for line in out.strip().splitlines()[-5:]]
            steps.append({"step": name, "command": command, "status": code, "seconds": round(seconds, 1), "ends": ends})
            run.write(
                said.json, {"what": "tests and proofs in a bare Debian root", "packages": INCLUDED, "steps": steps}
            )
            if code:
                sys.exit(f"{name}: status {code}")
    finally:
        subprocess.run(["docker", "rm", "--force", NAME], check=False, capture_output=True)
        subprocess.run(["docker", "rmi", "--force", image], check=False, capture_output=True)


if __name__ == "__main__":
    main()
