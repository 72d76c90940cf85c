"""What the measurements of builds share: a clone of this checkout to edit in, one build in it, facts of the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
INVOKE = Path(sys.executable).parent / "invoke"


def clone(into: Path) -> Path:
    """A clone of the checkout's HEAD, so that an edit for a measurement is nobody's edit."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(into)], check=True)
    return into


def environment(checkout: Path, store: Path | None = None) -> dict[str, str]:
    """Environment in which a clone's own library runs, on a store."""
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    return env if store is None else {**env, "SPARKFORGE_STORE": str(store)}


def build(checkout: Path, *words: str, store: Path | None = None) -> tuple[float, dict[str, Any], str]:
    """Build in a clone; wall seconds, the manifest, and what was said to people."""
    begun = time.monotonic()
    done = subprocess.run(
        [str(INVOKE), "build", *words, "--json"],
        cwd=checkout,
        env=environment(checkout, store),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - begun
    if done.returncode:
        sys.exit(f"the build failed with status {done.returncode}\n{done.stderr}")
    return seconds, json.loads(done.stdout), done.stderr


def machine() -> dict[str, Any]:
    """What a reader needs to judge the times."""
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", "HEAD"], text=True).strip(),
    }
