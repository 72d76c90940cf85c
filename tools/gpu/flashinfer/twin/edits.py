"""What must differ in the tree's headers for the SM12x grouped GEMM to run on a GPU of compute capability 9.0.

Nothing of upstream is kept here: each edit is a small replacement inside of a region that is named by its own words,
applied at build time to a copy of one header. A region or an old text that is not found exactly once is an error, so
that a changed upstream fails loudly instead of being tested in part.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CUTLASS = "3rdparty/cutlass/include/"
MAINLOOP = CUTLASS + "cutlass/gemm/collective/sm120_blockscaled_mma_array_tma.hpp"
MMA = CUTLASS + "cute/arch/mma_sm120.hpp"
COPY = CUTLASS + "cute/arch/copy_sm100.hpp"
MOE = "csrc/fused_moe/cutlass_backend/cutlass_fused_moe_kernels.cuh"
QUANTIZE = "csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh"
DEVICE = "csrc/nv_internal/include/tensorrt_llm/common/cudaUtils.h"
# Where the copies lie, by the folder of the include path that each stands in for; the longest that fits.
ROOTS = {CUTLASS: "cutlass", "csrc/nv_internal/include/": "include", "csrc/nv_internal/": "internal", "csrc/": "csrc"}


class EditError(Exception):
    """The tree is not what an edit was written for."""


@dataclass(frozen=True)
class Edit:
    """One replacement in one header.

    Attributes:
        path: of the header in the tree.
        why: what the edit stands for.
        start: text at which the region starts; must stand once in the header. Empty: the whole header.
        end: text at which the region ends, the first after `start`.
        old: text to replace; must stand once in the region.
        new: what replaces it.
    """

    path: str
    why: str
    old: str
    new: str
    start: str = ""
    end: str = ""

    def apply(self, text: str) -> str:
        """Return the edited text.

        Raises:
            EditError: the region or the old text is not there exactly once.
        """
        first, last = 0, len(text)
        if self.start:
            self._once(text, self.start)
            first = text.index(self.start)
            last = text.find(self.end, first + len(self.start))
            if last < 0:
                message = f"{self.path}: no {self.end!r} after {self.start!r} ({self.why})"
                raise EditError(message)
        region = text[first:last]
        self._once(region, self.old)
        return text[:first] + region.replace(self.old, self.new) + text[last:]

    def _once(self, text: str, part: str) -> None:
        if (count := text.count(part)) != 1:
            message = f"{self.path}: {part!r} stands {count} times, not once ({self.why})"
            raise EditError(message)


def _fma(types: str, call: str) -> Edit:
    return Edit(
        path=MMA,
        why=f"the block-scaled MMA of {types} in software",
        start=f"// MMA.SF 16x8x32 TN {types} with SF UE8M0\n",
        end="\n};\n",
        old="#if defined(CUTE_ARCH_MXF8F6F4_MMA_ENABLED)\n",
        new=(
            "#if defined(SPARKFORGE_TWIN)\n"
            f"    {call}(d0, d1, d2, d3, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3, sfa0, sfb0);\n"
            "#elif defined(CUTE_ARCH_MXF8F6F4_MMA_ENABLED)\n"
        ),
    )


def _tma_type(operand: str) -> Edit:
    return Edit(
        path=MAINLOOP,
        why=f"operand {operand} in FP4 is copied as bytes: TMA unpacks nibbles on compute capability 10.0 and later only",
        start=f"  using TmaInternalElement{operand} = ",
        end=";\n",
        old="cutlass::detail::float_e2m1_unpacksmem_t",
        new="uint8_t",
    )


def _bytes(operand: str) -> Edit:
    return Edit(
        path=MAINLOOP,
        why=f"a stage announces a byte for each element of operand {operand}",
        old=f"size(take<0,2>(SmemLayout{operand}{{}})) * sizeof_bits<Element{operand}>::value",
        new=f"size(take<0,2>(SmemLayout{operand}{{}})) * sizeof_bits<SmemAllocType{operand}>::value",
    )


def _guard(function: str) -> Edit:
    return Edit(
        path=QUANTIZE,
        why="nothing in it needs an instruction that compute capability 9.0 lacks",
        start=function,
        end="\n}\n",
        old="(__CUDA_ARCH__ >= 1000)",
        new="(__CUDA_ARCH__ >= 900)",
    )


TWIN = (
    Edit(
        path=MMA,
        why="the software MMA is known",
        old="#include <cute/arch/mma.hpp>\n",
        new="#include <cute/arch/mma.hpp>\n#include <twin/mma.cuh>\n",
    ),
    _fma("E4M3 x E2M1", "sparkforge::twin::mma<false>"),
    _fma("E2M1 x E4M3", "sparkforge::twin::mma<true>"),
    Edit(
        path=COPY,
        why="nibbles lie one to a byte in shared memory: the plain matrix load moves the same bytes",
        start="struct SM100_SU4_DU8x16_x4_LDSM_N\n",
        end="\n};\n",
        old="#if defined(CUTE_ARCH_LDSM_SM100A_ENABLED)\n",
        new=(
            "#if defined(SPARKFORGE_TWIN)\n"
            "    sparkforge::twin::load_matrix(cast_smem_ptr_to_uint(&smem_src), dst0, dst1, dst2, dst3);\n"
            "#elif defined(CUTE_ARCH_LDSM_SM100A_ENABLED)\n"
        ),
    ),
    Edit(
        path=COPY,
        why="the plain matrix load is known",
        old="#include <cute/arch/copy.hpp>\n",
        new="#include <cute/arch/copy.hpp>\n#include <twin/load.cuh>\n",
    ),
    _tma_type("A"),
    _tma_type("B"),
    _bytes("A"),
    _bytes("B"),
    Edit(
        path=MOE,
        why="an expert's weights start at as many bytes as elements",
        start="__host__ __device__ constexpr T* safe_inc_ptr(T* ptr, size_t offset) {\n",
        end="\n}\n",
        old="(sizeof_bits<T>::value < 8) ? (8 / sizeof_bits<T>::value) : 1;",
        new="1;",
    ),
    _guard("uint64_t cvt_warp_fp16_to_mxfp8("),
    _guard("uint8_t* cvt_quant_get_sf_out_offset("),
    Edit(
        path=DEVICE,
        why="the MoE runner offers and dispatches what it does on SM12x",
        start="inline int getSMVersion() {\n",
        end="\n}\n",
        old="  return sm_major * 10 + sm_minor;",
        new="  return 120;",
    ),
)

# Defects of the kernel, compiled in by -DSPARKFORGE_PLANTED=<number>; each must be found by the judge.
PLANTED = (
    Edit(
        path=MAINLOOP,
        why="1: each tile looks at the first columns of its block of scale factors, as if n % 4 were 0",
        old="      auto first = make_coord((n_tile % TilesOfBlockSFB) * int32_t(columns), _0{}, _0{});\n",
        new=(
            "#if SPARKFORGE_PLANTED == 1\n"
            "      auto first = make_coord(int32_t(0), _0{}, _0{});\n"
            "#elif SPARKFORGE_PLANTED == 2\n"
            "      auto first = make_coord(((n_tile + 1) % TilesOfBlockSFB) * int32_t(columns), _0{}, _0{});\n"
            "#else\n"
            "      auto first = make_coord((n_tile % TilesOfBlockSFB) * int32_t(columns), _0{}, _0{});\n"
            "#endif\n"
        ),
    ),
    Edit(
        path=MAINLOOP,
        why="6: the copy of scale factors counts blocks as if each held one tile",
        old="      Tensor gSFB = gSFB_nkl(_,_,n_coord / TilesOfBlockSFB,_,l_coord); ",
        new=(
            "#if SPARKFORGE_PLANTED == 6\n"
            "      Tensor gSFB = gSFB_nkl(_,_,n_coord,_,l_coord);\n"
            "#else\n"
            "      Tensor gSFB = gSFB_nkl(_,_,n_coord / TilesOfBlockSFB,_,l_coord);\n"
            "#endif\n"
        ),
    ),
    Edit(
        path=MAINLOOP,
        why="3: the descriptor of operand B's scale factors gets the extents of operand A's",
        old="                                                            prob_shape_SFB,\n",
        new=(
            "#if SPARKFORGE_PLANTED == 3\n"
            "                                                            prob_shape_SFA,\n"
            "#else\n"
            "                                                            prob_shape_SFB,\n"
            "#endif\n"
        ),
    ),
    Edit(
        path=MAINLOOP,
        why="5: the scale factors of each expert start one block too far",
        old="                                                    mainloop_params.ptr_SFB[next_batch]);\n",
        new=(
            "#if SPARKFORGE_PLANTED == 5\n"
            "                                                    mainloop_params.ptr_SFB[next_batch] + 512);\n"
            "#else\n"
            "                                                    mainloop_params.ptr_SFB[next_batch]);\n"
            "#endif\n"
        ),
    ),
)


def overlay(tree: Path, out: Path) -> list[Path]:
    """Write the edited headers of `tree` under `out`; returns the folders to search before the tree's own.

    Raises:
        EditError: the tree is not what the edits were written for.
    """
    texts: dict[str, str] = {}
    for edit in (*TWIN, *PLANTED):
        texts[edit.path] = edit.apply(texts.get(edit.path) or (tree / edit.path).read_text())
    for path, text in texts.items():
        root = next(root for root in ROOTS if path.startswith(root))
        target = out / ROOTS[root] / path.removeprefix(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file() or target.read_text() != text:
            target.write_text(text)
    return [out / folder for folder in ROOTS.values()]
