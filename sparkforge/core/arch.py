"""A GPU architecture such as `12.1f`, parsed once and spelled for every tool that wants it otherwise.

The suffix matters: `12.1` compiles block-scaled MMA away without a word, `12.1a` runs on that chip alone,
`12.1f` on every later chip of its family (CUDA C++ Programming Guide, "Family-specific compiler targets").
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparkforge.core.errors import BadInput

SM12X = 12
_SPELLING = re.compile(r"(?P<major>[0-9]{1,2})\.(?P<minor>[0-9])(?P<suffix>[af]?)\Z")


@dataclass(frozen=True, order=True)
class Arch:
    """One compute capability with its target suffix.

    Attributes:
        major: 12 of 12.1f.
        minor: 1 of 12.1f.
        suffix: "f" (family), "a" (this chip alone) or "" (baseline instructions only).
    """

    major: int
    minor: int
    suffix: str = ""

    @classmethod
    def parse(cls, text: str) -> Arch:
        """Arch from `12.1f`.

        Raises:
            BadInput: not of that form.
        """
        found = _SPELLING.match(text.strip())
        if not found:
            raise BadInput(f"{text!r} is no architecture", why="the form is MAJOR.MINOR[a|f]", do="--arch 12.1f")
        return cls(int(found["major"]), int(found["minor"]), found["suffix"])

    @property
    def text(self) -> str:
        """As people write it and FLASHINFER_CUDA_ARCH_LIST takes it: 12.1f."""
        return f"{self.major}.{self.minor}{self.suffix}"

    flashinfer = text

    @property
    def sm(self) -> str:
        """As nvcc and CMAKE_CUDA_ARCHITECTURES take it: 121f."""
        return f"{self.major}{self.minor}{self.suffix}"

    cmake = sm

    @property
    def torch(self) -> str:
        """As TORCH_CUDA_ARCH_LIST takes it; torch 2.11 knows no `f`, so the chip's own `a` stands for it."""
        return f"{self.major}.{self.minor}{'a' if self.suffix else ''}"

    @property
    def capability(self) -> tuple[int, int]:
        """(major, minor)."""
        return (self.major, self.minor)

    @property
    def block_scaled(self) -> bool:
        """Whether code for this target may hold SM12x block-scaled MMA."""
        return self.major == SM12X and bool(self.suffix)

    def gencode(self) -> list[str]:
        """Flags of nvcc for machine code of this target and nothing else."""
        return [f"-gencode=arch=compute_{self.sm},code=sm_{self.sm}"]


def parse_archs(text: str) -> tuple[Arch, ...]:
    """Architectures of a list such as `12.1f,9.0`: sorted, each once.

    Raises:
        BadInput: an item is no architecture, or there is none.
    """
    archs = {Arch.parse(item) for item in re.split(r"[,; ]+", text.strip()) if item}
    if not archs:
        raise BadInput("the list of architectures is empty", do="--arch 12.1f")
    return tuple(sorted(archs))
