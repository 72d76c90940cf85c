"""F-11: of the CTAs that share a sequence only the last stores the output, and GB10 gets its fences."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

MHA = "csrc/xqa/mha.cu"


def guard_of_the_store(text: str) -> str:
    """The condition of the block that copies the output tile to global memory."""
    store = text.index("copyOutputToGlobalMem(", text.index("smemOutTile = mergeAndSaveOutTile(mergedOutTile"))
    start = text.rindex("if (", 0, store)
    assert "}" not in text[start:store], "the store of the output is not where it was"
    return text[start + len("if (") : text.index(") {", start)]


def test_the_output_is_stored_by_the_last_cta_alone(tree):
    text = (tree / MHA).read_text()
    condition = guard_of_the_store(text)
    conjuncts = [part.strip() for part in condition.split("&&")]
    gates = [part for part in conjuncts if part != "warpGrpIdx == 0"]
    assert gates, "every CTA of a sequence stores its part over the merged output"
    (gate,) = gates
    assert re.search(rf"bool {gate} = true;", text), "a CTA that shares its sequence with none must store"
    assert re.search(rf"^\s+{gate} = (isLastCta|mbsmem\.isLastCta);", text, re.MULTILINE)


def ptx(tree, folder, arch: str) -> str:
    out = folder / f"{arch}.ptx"
    defines = (
        "NDEBUG=1 BEAM_WIDTH=1 USE_INPUT_KV=0 USE_CUSTOM_BARRIER=1 TOKENS_PER_PAGE=16 HEAD_ELEMS=64 INPUT_FP16=0 "
        "DTYPE=__nv_bfloat16 CACHE_ELEM_ENUM=0 HEAD_GRP_SIZE=8 SLIDING_WINDOW=1 LOW_PREC_OUTPUT=0 SPEC_DEC=0 "
        "MLA_WRAPPER=0 USE_SM90_MHA=0"
    )
    command = [
        "nvcc", "-std=c++17", "-O3", "-w", "-ptx", "--expt-relaxed-constexpr", f"-arch=compute_{arch}",
        *[f"-D{define}" for define in defines.split()], f"-I{tree / 'csrc'}", f"-I{tree / 'include'}",
        str(tree / MHA), "-o", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = f"{MHA} does not compile: {done.stderr[-4000:]}"
        raise RuntimeError(message)
    return out.read_text()


@pytest.fixture(scope="module")
def code(tree, tmp_path_factory) -> dict[str, list[str]]:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc here")
    folder = tmp_path_factory.mktemp("xqa")
    return {arch: ptx(tree, folder, arch).splitlines() for arch in ("121f", "120f", "90a")}


def fences(lines: list[str]) -> list[int]:
    return [number for number, line in enumerate(lines) if "fence.acq_rel" in line]


def test_sm121_has_a_fence_before_the_semaphore(code):
    lines = code["121f"]
    (semaphore,) = [number for number, line in enumerate(lines) if "atom.acq_rel.gpu.global.inc" in line]
    before = [number for number in fences(lines) if number < semaphore and ".gpu" in lines[number]]
    assert len(before) >= 2, "the parts of the result may not be visible to the CTA that merges them"
    barrier = max(number for number in range(semaphore) if re.search(r"bar(rier)?\.sync|barrier\.cta\.sync", lines[number]))
    assert before[-2] < barrier < before[-1], "the fences do not stand on both sides of the CTA's barrier"


def test_sm121_has_a_fence_before_the_tile_is_given_back(code):
    assert any(".cta" in code["121f"][number] for number in fences(code["121f"])), (
        "the next tile may overwrite what is still being read"
    )


def test_other_architectures_compile_to_the_same_code_as_before(code):
    for arch in ("120f", "90a"):
        assert not fences(code[arch]), f"compute_{arch} pays for GB10's fences"
