"""Folders of a checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
RECIPES = ROOT / "recipes"
STACKS = RECIPES / "stacks"
IMAGES = ROOT / "images"
RESULTS = ROOT / "results"


def shown(path: Path) -> str:
    """Path as a person would type it: relative to the checkout or to the working directory, if it is below one."""
    for base in (ROOT, Path.cwd()):
        if path.is_relative_to(base):
            return str(path.relative_to(base))
    return str(path)
