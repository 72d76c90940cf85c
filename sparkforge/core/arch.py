"""A GPU architecture such as `12.1f`, parsed once and spelled for every tool.

The suffix matters: `12.1` silently compiles without block-scaled MMA; `12.1a` runs on that chip alone, `12.1f` on
every later chip of its family (CUDA C++ Programming Guide, "Family-specific compiler targets").
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparkforge.core.errors import BadInput

SM12X = 12
_SPELLING = re.compile(r"(?P<major>[0-9]{1,2})\.(?P<minor>[0-9])(?P<suffix>[af]?)\Z")


@dataclass(frozen=True, order=True)
class Arch:
    """A compute capability with its target suffix: "f" (family), "a" (this chip alone) or "" (baseline)."""

    major: int
    minor: int
    suffix: str = ""

    @classmethod
    def parse(cls, text: str) -> Arch:
        """Arch from `12.1f`.

        Raises:
            BadInput: the text has another form.
        """
        found = _SPELLING.match(text.strip())
        if not found:
            raise BadInput(f"{text!r} is not an architecture", why="the form is MAJOR.MINOR[a|f]", do="--arch 12.1f")
        return cls(int(found["major"]), int(found["minor"]), found["suffix"])

    @property
    def text(self) -> str:
        """For people and FLASHINFER_CUDA_ARCH_LIST: 12.1f."""
        return f"{self.major}.{self.minor}{self.suffix}"

    @property
    def sm(self) -> str:
        """For nvcc: 121f."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def torch(self) -> str:
        """For TORCH_CUDA_ARCH_LIST; torch 2.11 does not know `f`, so it gets the chip's own `a`."""
        return f"{self.major}.{self.minor}{'a' if self.suffix else ''}"

    @property
    def capability(self) -> tuple[int, int]:
        """(major, minor)."""
        return (self.major, self.minor)

    def gencode(self) -> list[str]:
        """Flags of nvcc for machine code of this target and nothing else."""
        return [f"-gencode=arch=compute_{self.sm},code=sm_{self.sm}"]


def parse_archs(text: str) -> tuple[Arch, ...]:
    """Architectures of a list such as `12.1f,9.0`, sorted and without duplicates.

    Raises:
        BadInput: an item is not an architecture, or the list is empty.
    """
    archs = {Arch.parse(item) for item in re.split(r"[,; ]+", text.strip()) if item}
    if not archs:
        raise BadInput("the list of architectures is empty", do="--arch 12.1f")
    return tuple(sorted(archs))
