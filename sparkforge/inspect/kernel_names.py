"""What a kernel's name says: CUTLASS writes tile, types and epilogue into it.

Read from the mangled name, since the C++ runtime's own demangler gives up on these (GCC 12's does). A component that
was named before stands as `S<number>_`, numbers in base 36 counting from `S_`, `S0_` (Itanium C++ ABI, 5.1.8): a tile
128x32x128 is `tuple<C<128>, C<32>, SI_>` where `SI_` is `C<128>`. The tuple itself comes right after its new
components, and the epilogue's first argument names it, which tells the numbers of the components.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TYPES = {"float_e4m3_t": "FP8", "float_e2m1_t": "FP4", "bfloat16_t": "BF16", "half_t": "FP16"}
# The epilogue that scales, adds the bias and scatters to the tokens' rows.
FINALIZE = re.compile(r"ScaledAccPer(?:Row|Col)BiasPer(?:Row|Col)ScaleScatter")
_MAINLOOP = re.compile(r"Mainloop\w*?BlockScaledI")
# The tuple of three, then the one of the first operand's types.
_OF = "NS[0-9A-Z]*_I"
_TILE = re.compile(rf"{_OF}J((?:{_OF}Li\d+EEE|S[0-9A-Z]*_){{3}})EEE{_OF}JNS_\d+(float_e\dm\d_t)E")
_PART = re.compile(r"ILi(\d+)EEE|S([0-9A-Z]*)_(?!I)")
_EPILOGUE = re.compile(r"CollectiveEpilogueI.*?EEEJS([0-9A-Z]*)_")
_OPERAND = re.compile(r"float_e[24]m[13]_t")
_OUTPUT = re.compile(r"bfloat16_t|half_t")


@dataclass(frozen=True, order=True)
class Gemm:
    """A block-scaled grouped GEMM, as its name says it.

    Attributes:
        a: type of the operand on M: FP8 or FP4.
        b: type of the operand on N.
        tile: M, N, K.
        finalize: whether the epilogue adds to the tokens' rows.
        out: type of what is written.
    """

    a: str
    b: str
    tile: tuple[int, int, int]
    finalize: bool
    out: str

    @property
    def text(self) -> str:
        """For people and for results."""
        size = "x".join(str(part) for part in self.tile)
        return f"{self.a}x{self.b} {size} {'finalize' if self.finalize else 'plain'} {self.out}"


def gemm(name: str) -> Gemm | None:
    """What a kernel is, from its mangled name; None where it is no block-scaled GEMM of CUTLASS.

    Raises:
        ValueError: it is one, and its name has a form that is not known here.
    """
    mainloop = _MAINLOOP.search(name)
    if mainloop is None:
        return None
    tile, epilogue = _TILE.search(name, mainloop.end()), _EPILOGUE.search(name, mainloop.end())
    if tile is None or epilogue is None:
        raise ValueError(f"the name of a block-scaled kernel cannot be read: {name}")
    operands = _OPERAND.findall(name, tile.start(2), name.find("TiledMMA", tile.end()))
    out = _OUTPUT.search(name, epilogue.end())
    return Gemm(
        TYPES[tile[2]],
        TYPES[next((each for each in operands if each != tile[2]), tile[2])],
        _numbers(tile[1], _counted(epilogue[1]), name),
        FINALIZE.search(name) is not None,
        TYPES[out[0]] if out else "",
    )


def _numbers(tile: str, own: int, name: str) -> tuple[int, int, int]:
    """Numbers of a tuple that is component `own` of its name."""
    parts = _PART.findall(tile)
    new = [int(number) for number, _ in parts if number]
    known = dict(enumerate(new, start=own - len(new)))
    try:
        m, n, k = (int(number) if number else known[_counted(again)] for number, again in parts)
    except (KeyError, ValueError) as bad:
        raise ValueError(f"the tile of a block-scaled kernel cannot be read: {name}") from bad
    return m, n, k


def _counted(text: str) -> int:
    """Number of a component: `S_` is the first."""
    return int(text, 36) + 1 if text else 0
