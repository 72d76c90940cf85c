"""The Debian packages of every base, read from `images/base/packages.txt`."""

from __future__ import annotations

from sparkforge.core.paths import IMAGES

LIST = IMAGES / "base" / "packages.txt"


def packages() -> list[str]:
    """Package names, sorted; a `#` begins a comment."""
    lines = (line.partition("#")[0].strip() for line in LIST.read_text().splitlines())
    return sorted(line for line in lines if line)
