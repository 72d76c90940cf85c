"""F-11: of the CTAs that share a sequence only the last stores the output, and GB10 gets its fences.

All of it is asked of what the hashed nvcc makes of the kernel that gpt-oss runs: PTX, and machine code (SASS).
"""

from __future__ import annotations

import re
import subprocess

import pytest

MHA = "csrc/xqa/mha.cu"
ARCHS = ("121f", "120f", "90a")
DEFINES = (
    *("NDEBUG=1", "BEAM_WIDTH=1", "USE_INPUT_KV=0", "USE_CUSTOM_BARRIER=1", "TOKENS_PER_PAGE=16", "HEAD_ELEMS=64"),
    *("INPUT_FP16=0", "DTYPE=__nv_bfloat16", "CACHE_ELEM_ENUM=0", "HEAD_GRP_SIZE=8", "SLIDING_WINDOW=1"),
    *("LOW_PREC_OUTPUT=0", "SPEC_DEC=0", "MLA_WRAPPER=0", "USE_SM90_MHA=0"),
)
SEMAPHORE = "atom.acq_rel.gpu.global.inc"
CTAS_BARRIER = re.compile(r"\bbar(rier)?(\.cta)?\.sync\b")


def run(*words) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode != 0:  # no assertion: a kernel that does not compile proves nothing
        message = f"{words[0]} ended with status {done.returncode}: {done.stderr[-4000:]}"
        raise RuntimeError(message)
    return done.stdout


@pytest.fixture(scope="module")
def compiled(tree, toolchain, tmp_path_factory) -> dict[str, tuple[list[str], list[str]]]:
    """PTX and SASS of each architecture, as lines."""
    folder, made = tmp_path_factory.mktemp("xqa"), {}
    includes = [tree / "csrc", tree / "include", *toolchain("SPARKFORGE_CUDA_INCLUDE").split(":")]
    for arch in ARCHS:
        words = [toolchain("SPARKFORGE_NVCC"), "-std=c++17", "-O3", "-w", "--expt-relaxed-constexpr", "-cubin"]
        words += [f"-gencode=arch=compute_{arch},code=sm_{arch}", *[f"-D{define}" for define in DEFINES]]
        words += [f"-I{include}" for include in includes]
        run(*words, tree / MHA, "--keep", "--keep-dir", folder, "-o", folder / f"{arch}.cubin")
        sass = run(toolchain("SPARKFORGE_CUOBJDUMP"), "-sass", folder / f"{arch}.cubin")
        made[arch] = (folder / "mha.ptx").read_text().splitlines(), sass.splitlines()
    return made


@pytest.fixture(scope="module")
def ptx(compiled):
    return {arch: lines for arch, (lines, _) in compiled.items()}


@pytest.fixture(scope="module")
def sass(compiled):
    return {arch: lines for arch, (_, lines) in compiled.items()}


def where(lines, word) -> list[int]:
    return [number for number, line in enumerate(lines) if word in line]


def stores(lines: list[str], begin: int, known: dict[str, int], avoid: int = -1) -> set[int]:
    """Stores to global memory that the PTX comes to from a line, without passing another.

    Of registers only what follows from those known is known; a branch on anything else goes both ways.
    """
    labels = {line.rstrip(":"): number for number, line in enumerate(lines) if line.startswith("$L")}
    waiting, seen, found = [(begin, tuple(sorted(known.items())))], set(), set()
    while waiting:
        at, items = waiting.pop()
        line = lines[at].strip().rstrip(";")
        if (at, items) in seen or at == avoid or line in ("ret", "}"):
            continue
        seen.add((at, items))
        state = dict(items)
        if line.startswith("st.global"):
            found.add(at)
        if branch := re.fullmatch(r"(?:@(!?)(%\w+)\s+)?bra(?:\.uni)?\s+(\$\w+)", line):
            inverted, predicate, label = branch.groups()
            value = 1 if predicate is None else state.get(predicate)
            taken = (0, 1) if value is None else (value ^ bool(inverted),)
            waiting += [(labels[label] if one else at + 1, items) for one in taken]
            continue
        if target := re.match(r"(?:@!?%\w+\s+)?[\w.:]+\s+(%\w+),", line):
            value = None if line.startswith("@") else computed(line, state)
            state.pop(target[1], None)
            if value is not None:
                state[target[1]] = value
        waiting.append((at + 1, tuple(sorted(state.items()))))
    return found


def computed(line: str, state: dict[str, int]) -> int | None:
    """The value of a predicate or of a copy of the word, where it is known."""
    name, _, rest = line.partition(" ")
    given = [word.strip() for word in rest.split(",")][1:]
    values = [state.get(word, int(word) if re.fullmatch(r"-?\d+", word) else None) for word in given]
    known = [None if value is None else int(value != 0) for value in values]
    match name.split(".")[:2]:
        case ["mov", "pred"]:
            return known[0]
        case ["not", "pred"]:
            return None if known[0] is None else 1 - known[0]
        case ["or", "pred"]:
            return 1 if 1 in known else None if None in known else 0
        case ["and", "pred"]:
            return 0 if 0 in known else None if None in known else 1
        case ["setp", "eq" | "ne" as how] if None not in values:
            return int((values[0] == values[1]) == (how == "eq"))
    return None


@pytest.fixture(scope="module", params=ARCHS)
def cta(request, ptx):
    """Stores of a CTA after it read whether it is the last of its sequence: `cta(last=1)`; `cta()` never reads it."""
    lines = ptx[request.param]
    (semaphore,) = where(lines, SEMAPHORE)
    read = next(number for number in range(semaphore, len(lines)) if "ld.shared.u8" in lines[number])
    (word,) = re.findall(r"ld\.shared\.u8\s+(%\w+),", lines[read])
    begin = next(number for number, line in enumerate(lines) if line.startswith("{"))

    def stored(last: int | None = None) -> set[int]:
        return stores(lines, begin, {}, avoid=read) if last is None else stores(lines, read + 1, {word: last})

    return stored


def test_the_output_is_stored_by_the_last_cta_alone(cta):
    assert cta(last=1), "nobody stores the merged output"
    assert not cta(last=0), "every CTA of a sequence stores its part over the merged output"


def test_a_cta_that_shares_its_sequence_with_none_stores_the_output(cta):
    assert cta() >= cta(last=1)


def test_sm121_has_a_fence_on_both_sides_of_the_barrier_before_the_semaphore(ptx):
    lines = ptx["121f"]
    (semaphore,) = where(lines, SEMAPHORE)
    before = [number for number in where(lines, "fence.acq_rel.gpu") if number < semaphore]
    assert len(before) >= 2, "the parts of the result may not be visible to the CTA that merges them"
    barrier = max(number for number in range(semaphore) if CTAS_BARRIER.search(lines[number]))
    assert before[-2] < barrier < before[-1]


def test_sm121_has_a_fence_before_the_tile_is_given_back(ptx):
    assert where(ptx["121f"], "fence.acq_rel.cta"), "the next tile may overwrite what is still being read"


def test_the_fences_are_in_the_machine_code(sass):
    """MEMBAR is what a fence becomes; the code of 12.0 has those of the kernel before it was patched."""
    for kind, more in (("MEMBAR.ALL.GPU", 2), ("MEMBAR.ALL.CTA", 1)):
        count = {arch: len(where(sass[arch], kind)) for arch in ARCHS}
        assert count["121f"] >= count["120f"] + more, f"{kind}: {count}"
    code = sass["121f"]
    semaphore = where(code, "ATOMG.E.INC")[0]
    before = [number for number in where(code, "MEMBAR.ALL.GPU") if number < semaphore]
    barrier = max(number for number in where(code, "BAR.SYNC") if number < semaphore)
    assert before[0] < barrier, "no fence before the CTA's barrier"
    assert sum(number > barrier for number in before) >= 2, "no fence of its own before the semaphore's"


def test_other_architectures_pay_for_no_fence(ptx):
    for arch in ("120f", "90a"):
        assert not where(ptx[arch], "fence.acq_rel"), f"compute_{arch} pays for GB10's fences"
