"""What the proof ran on: versions, tree ids of the patched packages, device and driver."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("torch", "triton", "vllm", "flashinfer-python", "transformers", "apache-tvm-ffi", "numpy", "safetensors")


def _said(*words: str) -> str | None:
    if shutil.which(words[0]) is None:
        return None
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() or None


def facts() -> dict:
    """Everything, with None for what cannot be found out."""
    found: dict = {"python": platform.python_version(), "packages": {}, "trees": {}}
    for name in PACKAGES:
        try:
            found["packages"][name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found["packages"][name] = None
    for name in ("vllm", "flashinfer"):
        spec = importlib.util.find_spec(name)  # found, not imported
        home = Path(spec.origin).parent if spec and spec.origin else None
        tree = home / "sparkforge_tree.txt" if home else None
        found["trees"][name] = tree.read_text().strip() if tree and tree.exists() else None
    import torch

    found["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        found["capability"] = list(torch.cuda.get_device_capability())
        found["memory"] = torch.cuda.get_device_properties(0).total_memory
    found["driver"] = _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    nvcc = _said("nvcc", "--version")
    found["nvcc"] = nvcc.splitlines()[-2].split(",")[-1].strip() if nvcc else None
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(facts()))
