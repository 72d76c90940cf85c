"""What the dense decode kernels should do on a GB10: instructions a weight, occupancy, bytes in flight, time.

    python kernels/bench/predict.py [--measured results/kernels/dense-sm90.json]

Nothing here was run on a GB10: figures are predicted. The library is compiled for 12.1f and read; no GPU is needed.

Model, a launch: time = the longest of
    bytes / bandwidth,
    instructions / (multiprocessors x 4 schedulers x clock x 0.8),
    bytes / (bytes in flight / 800 ns),
plus 1.5 us for a launch. `--measured` shows how far off it is on an H100, where a launch takes 4 to 8 us and latency
binds; on a GB10 the same bytes take 24 to 1450 us.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from sparkforge.core.arch import parse_archs  # noqa: E402  the path comes first
from sparkforge.core.platforms import Platform  # noqa: E402
from sparkforge.core.proc import run  # noqa: E402
from sparkforge.core.store import Store  # noqa: E402
from sparkforge.inputs.kernel_list import load_kernels  # noqa: E402
from sparkforge.inputs.toolchain import inspector  # noqa: E402
from sparkforge.kernels.library import build  # noqa: E402

SHAPES = {"qkv": (5120, 2880), "o": (2880, 4096), "lm_head": (201088, 2880)}
LAYOUTS = ("rows", "marlin", "packed")
# Of a step: k, weights that a lane widens, rows of a pass, bytes that a lane asks for.
STEPS = {"rows": (128, 64, 16, 34), "marlin": (32, 64, 64, 40), "packed": (64, 32, 16, 18)}
ISSUE, LAUNCH, LATENCY = 0.8, 1.5, 0.8
MANY = 1024  # passes from which the launcher prefers a plan with more blocks to a multiprocessor


@dataclass(frozen=True)
class Chip:
    """A GPU: multiprocessors, GHz, GB/s, KiB of shared memory to a multiprocessor."""

    name: str
    count: int
    clock: float
    bandwidth: float
    shared: int


GB10 = (Chip("GB10 at 273 GB/s", 48, 2.4, 273, 99), Chip("GB10 at 213 GB/s", 48, 2.4, 213, 99))
H100 = Chip("H100", 132, 1.755, 3073, 227)


@dataclass(frozen=True)
class Code:
    """One plan's machine code."""

    layout: str
    warps: int
    steps: int
    group: int
    split: int
    registers: int
    per_weight: float

    @property
    def blocks(self) -> int:
        """To a multiprocessor, by registers (64 Ki, in steps of 8 a thread) and 1536 threads."""
        threads = self.warps * 32
        return min(65536 // (-(-self.registers // 8) * 8 * threads), 1536 // threads)

    @property
    def in_flight(self) -> int:
        """Bytes that a multiprocessor has asked for: one window of each warp."""
        return self.blocks * self.warps * 32 * self.group * STEPS[self.layout][3]

    def microseconds(self, chip: Chip, size: int) -> tuple[float, str]:
        """Of a launch that reads `size` bytes, and what binds it."""
        weights = size / 0.53125
        issue = weights * self.per_weight / 32 / (chip.count * 4 * chip.clock * 1e3 * ISSUE)
        parts = {
            "bandwidth": size / chip.bandwidth / 1e3,
            "instructions": issue,
            "bytes in flight": size / (chip.count * self.in_flight / LATENCY),
        }
        binds = max(parts, key=lambda name: parts[name])
        return parts[binds] + LAUNCH, binds


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measured", type=Path, help="a result of measure.py to hold the model against")
    words = parser.parse_args()
    print("Predicted. Nothing here was run on a GB10.\n")
    ours = codes("12.1f")
    print("layout   warps x steps   registers  blocks/SM  KiB in flight, 48 SMs  instructions a weight")
    for code in ours:
        print(
            f"{code.layout:<9}{code.warps:>5} x {code.steps:<6}{code.registers:>11}{code.blocks:>11}"
            f"{code.in_flight * 48 / 1024:>23.0f}{code.per_weight:>23.2f}"
        )
    print(f"\n273 GB/s at 800 ns need {273 * 800 / 1024:.0f} KiB in flight.\n")
    print("layer    layout   " + "".join(f"{chip.name:>34}" for chip in GB10))
    for name, (n, k) in SHAPES.items():
        for layout in LAYOUTS:
            code, size = chosen(ours, layout, n, k), n * k * 17 // 32
            said = [code.microseconds(chip, size) for chip in GB10]
            cells = "".join(f"{time:>12.1f} us, {binds:<18}" for time, binds in said)
            print(f"{name:<9}{layout:<9}{cells}")
    if words.measured:
        against(words.measured)
    return 0


def chosen(from_: list[Code], layout: str, n: int, k: int) -> Code:
    """The plan that launch_tiles.cuh chooses."""
    step = STEPS[layout][0]
    fits = [one for one in from_ if one.layout == layout and one.warps * one.steps * one.split * step >= k]
    many = n // STEPS[layout][2] >= MANY
    return max((one for one in fits if one.split == 1), key=lambda one: one.blocks) if many else fits[0]


def codes(arch: str) -> list[Code]:
    """Every plan of mxfp4_linear_decode with a fixed K, in the order of its launcher's lists."""
    built = build(Store.open(), load_kernels(["mxfp4_linear_decode"]), parse_archs(arch), Platform.host())
    tools = inspector(Store.open())
    environment = {"PATH": f"{tools}:/usr/bin:/bin"}
    sass = run([tools / "cuobjdump", "-sass", built.library], env=environment).out.decode()
    usage = run([tools / "cuobjdump", "-res-usage", built.library], env=environment).out.decode()
    found = []
    for part in sass.split("Function : ")[1:]:
        name = part.split(maxsplit=1)[0]
        if "mxfp4_linear_decode_kernel" not in name:
            continue
        layout, warps, steps, group, split, _ = map(int, re.findall(r"Li(\d+)E", name))
        if not warps:
            continue
        registers = int(re.search(rf"Function {name}:\s+REG:(\d+)", usage)[1])  # type: ignore[index]
        weights = steps * STEPS[LAYOUTS[layout]][1]
        code = Code(LAYOUTS[layout], warps, steps, group, split, registers, loop(part) / weights)
        found.append(code)
    return sorted(found, key=lambda one: (one.layout, one.warps * one.steps * one.split, one.split, -one.warps))


def loop(text: str) -> int:
    """Instructions of a pass, of a warp that multiplies: from the loop's head to where the block meets to add up.

    Followed as it runs where all scales are below 2: branches without a predicate are taken, others fall through. What
    comes after the meeting is for one warp in four at M = 8.
    """
    lines = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+([^;]+);", text, re.MULTILINE)
    code = {int(at, 16): what.strip() for at, what in lines}
    branch = re.compile(r"BRA\S*\s+(?:\S+, )?0x(\w+)")
    jumps = {at: int(found[1], 16) for at, what in code.items() if (found := branch.search(what))}
    vote = min(at for at, what in code.items() if "VOTE.ANY" in what)
    heads = [to for at, to in jumps.items() if to < vote < at]
    at, count = min(heads), 0
    while "BAR.SYNC" not in code[at]:
        what = code[at]
        count += not what.startswith("NOP")
        taken = at in jumps and what.startswith("BRA 0x") and jumps[at] > at
        at = jumps[at] if taken else at + 16
    return count


def against(path: Path) -> None:
    """The model for an H100 beside what was measured there."""
    measured: dict[str, Any] = json.loads(path.read_bytes())
    ours = codes("9.0")
    print(f"\nThe model against {measured['device']}, M = 1, without PDL:")
    for one in measured["timed"]:
        if one["m"] == 1 and one["name"] in SHAPES and one["variant"] in LAYOUTS:
            code = chosen(ours, one["variant"], *SHAPES[one["name"]])
            time, binds = code.microseconds(H100, one["bytes"])
            off = time / one["median_us"] - 1
            said = f"{time:>9.2f} us ({binds}), measured {one['median_us']:.2f}: {off:+.0%}"
            print(f"{one['name']:<9}{one['variant']:<9}{said}")


if __name__ == "__main__":
    sys.exit(main())
