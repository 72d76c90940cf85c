"""FlashInfer's CUTLASS MoE on compute capability 9.0 in CUDA graphs, in BF16: the binding that 12.x runs in MXFP4.

    python cutlass_moe.py RESULT.json

The same binding, tuner, workspace and device-side TMA descriptors; other tiles and types. Graphs of eight sizes in one
pool; replays among eager calls of other, larger sizes, as prefill is beside decode. Owners are looked at before each
replay; now and then nodes, addresses and tactics are compared with a capture beside it, and outputs with an eager call's. Words in which
captures of one thing differ are scribbled over, and must change no bit of any output (holes.py). Then defects are
planted, and must be seen: a word that is read, a tactic that changes, and a buffer that moves.

The module fused_moe_90 is compiled when it is missing, which takes long; a build of its BF16 part alone will do: a
tactic that is not in it throws, and tuning passes over it.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import bound
import holes
import memory
import nodes
import record
import torch
from flashinfer.autotuner import AutoTuner, autotune
from flashinfer.fused_moe import cutlass_fused_moe
from rules import LIMITS

EXPERTS, HIDDEN, INNER, TOP = 32, 512, 512, 4
SIZES = (1, 2, 4, 8, 16, 24, 32, 64)
LARGEST = 96
REPLAYS, BESIDE = 3000, 60
# Captures of each size made one after another, with nothing between but what the stack holds.
CONTROLS = 30
LIMIT = LIMITS["CUTLASS off"]


class Chosen:
    """Every tactic that the tuner gave: by GEMM and tokens, and whether a graph was being captured."""

    def __init__(self, stack: holes.Stack):
        self.seen: dict[tuple[str, int], Counter] = {}
        self.instead: dict[str, int] = {}
        self.stack = stack
        choose = AutoTuner.choose_one

        def watched(tuner, name, runners, config, inputs, **more):
            runner, tactic = choose(tuner, name, runners, config, inputs, **more)
            tactic = self.instead.get(name, tactic)
            if not tuner.is_tuning_mode:
                moment = "captured" if torch.cuda.is_current_stream_capturing() else "eager"
                self.seen.setdefault((name, inputs[0].shape[0]), Counter())[f"{moment} {tactic}"] += 1
                self.stack.fill()  # the binding is called next
            return runner, tactic

        AutoTuner.choose_one = watched

    def differing(self) -> list[str]:
        """GEMMs that got two tactics at one size."""
        return [
            f"{name} of {tokens} tokens: {dict(found)}"
            for (name, tokens), found in self.seen.items()
            if len({one.split()[1] for one in found}) > 1
        ]


class Moe:
    """One layer's experts and a call of them."""

    def __init__(self):
        draw = torch.Generator(device="cuda").manual_seed(7)
        make = lambda *dims, spread: (torch.randn(dims, generator=draw, device="cuda") * spread).bfloat16()  # noqa: E731
        self.first = make(EXPERTS, 2 * INNER, HIDDEN, spread=HIDDEN**-0.5)
        self.second = make(EXPERTS, HIDDEN, INNER, spread=INNER**-0.5)
        self.draw = draw

    def inputs(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows, experts and weights at random."""
        x = torch.randn(tokens, HIDDEN, generator=self.draw, device="cuda").bfloat16()
        scores = torch.rand(tokens, EXPERTS, generator=self.draw, device="cuda")
        weights, experts = scores.topk(TOP, dim=1)
        return x, experts.int(), (weights / weights.sum(dim=1, keepdim=True)).float()

    def __call__(self, x, experts, weights, out) -> None:
        cutlass_fused_moe(
            x, experts, weights, self.first, self.second, torch.bfloat16, [], output=out, tune_max_num_tokens=LARGEST
        )

    def reference(self, x, experts, weights) -> torch.Tensor:
        """The same in float32, expert by expert."""
        out = torch.zeros(x.shape[0], HIDDEN, device="cuda")
        for expert in range(EXPERTS):
            rows, place = (experts == expert).nonzero(as_tuple=True)
            if len(rows):
                up, gate = (x[rows].float() @ self.first[expert].float().T).split(INNER, dim=1)
                inner = (up * torch.nn.functional.silu(gate)).bfloat16().float()
                out.index_add_(0, rows, (inner @ self.second[expert].float().T) * weights[rows, place, None])
        return out


class Captured:
    """One size: its tensors, its graph, what the graph holds, its holes."""

    def __init__(self, moe: Moe, held: list[torch.Tensor], pool, stream):
        self.moe, self.held, self.stream = moe, held, stream
        self.tokens = held[0].shape[0]
        self.graph = self._capture(pool)
        self.record = self._read(self.graph, pool)
        self.owners = self._owners(self.record, memory.Map(tuple(pool)))
        # Each expert's part alone: what several add to one output by atomics they add in any order.
        self._inputs = [one.clone() for one in held[:2]]
        queue = torch.cuda.current_stream().cuda_stream
        self.holes = holes.Holes(
            self.record, lambda executable: self._outputs(lambda: holes.launch(executable, queue)),
            lambda: self._outputs(self.graph.replay),
        )  # fmt: skip
        self.patterned: Counter[holes.Word] = Counter()  # words that were the stack's pattern, how often

    def _capture(self, pool) -> torch.cuda.CUDAGraph:
        graph = record._Kept()
        with torch.cuda.graph(graph, pool=pool, stream=self.stream):
            self.moe(*self.held)
        return graph

    def _read(self, graph, pool) -> record.Graph:
        """Its nodes and whose memory they point into."""
        raw = int(graph.raw_cuda_graph())
        arguments = [one.data_ptr() for one in self.held]
        found = record.Graph(
            f"CUTLASS of {self.tokens} tokens", "FULL", self.tokens, raw, nodes.nodes(raw), [], arguments
        )
        where = memory.Map(tuple(pool), tensors=True)
        found.places = [record.addresses(node, where) for node in found.nodes]
        return found

    @staticmethod
    def _owners(graph: record.Graph, where: memory.Map) -> list[tuple[holes.Word, int, object]]:
        """Of each address of a tensor: where it stands, the address, a weak reference to the storage."""
        found: list[tuple[holes.Word, int, object]] = []
        for at, (node, places) in enumerate(zip(graph.nodes, graph.places, strict=True)):
            for number, offset, place in places:
                if place.kind == memory.TENSOR:
                    address = int.from_bytes(node.params[number][offset : offset + 8], "little")
                    found.append(((at, number, offset), address, where.owner(place.start, address)))
        return found

    def _outputs(self, go) -> list[torch.Tensor]:
        """What comes out where one expert of each row counts, its first, its second and so on."""
        x, experts, weights, out = self.held
        found = []
        for place in range(TOP):
            for mine, kept in zip((x, experts), self._inputs, strict=True):
                mine.copy_(kept)
            weights.zero_()
            weights[:, place] = 1
            out.fill_(float("nan"))
            go()
            torch.cuda.synchronize()
            found.append(out.clone())
        return found

    def lost(self) -> list[str]:
        """Owners that are gone, but for what a hole happens to hold."""
        return [
            f"owner freed: {self.record.label} {address:#x}" for word, address, owner in self.owners
            if word not in self.holes.bits and not memory.holds(owner, address)
        ]  # fmt: skip

    def beside(self, pattern: int | None = None) -> list[str]:
        """What a capture made now holds that the graph does not, and that is read: tactics, memory that moved, values."""
        pool = torch.cuda.graph_pool_handle()
        other = self._capture(pool)
        new = self._read(other, pool)
        found = [
            f"captured now, {what}: {said}" for what, said in record.differences(self.record, new) if what == "tactic"
        ]
        if not found:
            bits, moved = self.holes.new(new)
            found += [f"captured now, address: {said}" for said in moved]
            found += [
                f"captured now, a value that is read: {self.holes.named(word)}" for word in self.holes.unread(bits)
            ]
            if pattern is not None:
                for at, number, offset in self.holes.bits:
                    word = int.from_bytes(new.nodes[at].params[number][offset : offset + 8], "little")
                    self.patterned[at, number, offset] += holes.takes(word, pattern)
        other.reset()
        return found


def off(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative distance."""
    return float((one.float() - other.float()).norm() / other.float().norm())


def controlled(moe: Moe, sizes: dict[int, Captured], held, stack: holes.Stack, chance: random.Random) -> list[str]:
    """Captures with nothing between them but another stack: as it comes, stirred by a call, filled with patterns."""
    found = []
    for number in range(CONTROLS):
        for n, one in sizes.items():
            moe(*held[chance.choice((*SIZES, LARGEST)) if number % 2 else n])
            stack.word = holes.STACK[number // 3 % len(holes.STACK)] if number % 3 else None
            found += one.beside(stack.word)
            stack.word = None
    return found


def replayed(
    moe: Moe, sizes: dict[int, Captured], held, chance: random.Random, counts: Counter, worst: dict
) -> list[str]:
    """Replays among eager calls of other sizes; all that the graphs hold is looked at before each."""
    found = []
    for number in range(REPLAYS):
        n = chance.choice(SIZES)
        one = sizes[n]
        for mine, fresh in zip(held[n][:3], moe.inputs(n), strict=True):
            mine.copy_(fresh)
        if number % 3 == 0:  # a larger batch between two replays, as a prefill is
            moe(*held[chance.choice([size for size in (*SIZES, LARGEST) if size != n])])
        found += one.lost()
        counts["owners looked at"] += len(one.owners)
        held[n][3].fill_(float("nan"))
        one.graph.replay()
        counts["replays"] += 1
        if number % 10 == 0:
            out = held[n][3].clone()
            moe(*held[n])
            worst["eager"] = max(worst["eager"], off(out, held[n][3]))
            worst["reference"] = max(worst["reference"], off(out, moe.reference(*held[n][:3])))
            counts["outputs compared"] += 1
        if number % BESIDE == 0:
            found += one.beside()
            counts["captures beside"] += 1
    torch.cuda.synchronize()
    return found


def listed(sizes: dict[int, Captured]) -> dict:
    """What was captured, in numbers and by name."""
    records = [one.record for one in sizes.values()]
    kernels = Counter(node.name[:120] for one in records for node in one.nodes if node.kind == "kernel")
    kinds = Counter(place.kind for one in records for places in one.places for *_, place in places)
    large: Counter = Counter()
    for one in records:
        for node, places in zip(one.nodes, one.places, strict=True):
            for number, kind in {(number, place.kind) for number, _, place in places}:
                if len(node.params[number]) >= nodes.TENSOR_MAP:
                    large[f"{node.name[:60]}: {len(node.params[number])} bytes, {kind}"] += 1
    return {
        "kernels": dict(kernels), "addresses": dict(kinds), "nodes": {n: len(one.record.nodes) for n, one in sizes.items()},
        "large parameters with addresses": dict(large),
    }  # fmt: skip


def told_of_holes(sizes: dict[int, Captured]) -> dict:
    """How many there are, where, and that all of them together, scribbled over, change nothing."""
    by_value = sum(
        len(p) // 8 for one in sizes.values() for node in one.record.nodes for p in node.params if len(p) > 8
    )
    where = Counter(one.holes.named(word).split(" node ", 1)[1] for one in sizes.values() for word in one.holes.bits)
    return {
        "words of parameters by value": by_value,
        "words with holes": sum(len(one.holes.bits) for one in sizes.values()),
        "bits": sum(bits.bit_count() for one in sizes.values() for bits in one.holes.bits.values()),
        "words that took the stack's patterns": sum(
            count > 1 for one in sizes.values() for count in one.patterned.values()
        ),
        "graphs whose outputs repeat": sum(one.holes.repeats for one in sizes.values()),
        "graphs whose outputs stay with all holes scribbled": sum(one.holes.still_unread() for one in sizes.values()),
        "graphs": len(sizes),
        "clones run": sum(one.holes.launches for one in sizes.values()),
        "where": dict(where.most_common(80)),
    }


def main(out_path: Path) -> None:
    """Tune, capture, replay, compare, plant."""
    begun = time.monotonic()
    stack = holes.Stack(out_path.parent)
    chosen, moe, chance = Chosen(stack), Moe(), random.Random(3)
    held = {n: [*moe.inputs(n), torch.empty(n, HIDDEN, device="cuda", dtype=torch.bfloat16)] for n in (*SIZES, LARGEST)}
    with autotune(True):
        moe(*held[LARGEST])
    torch.cuda.synchronize()
    told: dict = {"seconds": {"tuned": time.monotonic() - begun}}
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    with torch.cuda.stream(stream):
        for tensors in held.values():
            moe(*tensors)
    torch.cuda.synchronize()
    sizes = {n: Captured(moe, held[n], pool, stream) for n in sorted(SIZES, reverse=True)}
    counts: Counter = Counter()
    worst = {"eager": 0.0, "reference": 0.0}
    found = controlled(moe, sizes, held, stack, chance)
    told["seconds"]["controlled"] = time.monotonic() - begun
    found += replayed(moe, sizes, held, chance, counts, worst)
    told["seconds"]["replayed"] = time.monotonic() - begun
    tactics = {f"{name} of {tokens}": dict(one) for (name, tokens), one in chosen.seen.items()}
    told |= {
        "counts": dict(counts), "found": found[:40], "wrong": len(found), "worst": worst, "limit": LIMIT, "tactics": tactics,
        "differing tactics": chosen.differing(), "holes": told_of_holes(sizes), **listed(sizes),
    }  # fmt: skip
    out_path.write_text(json.dumps(told))
    told["planted"] = planted(moe, held, sizes[8], stream, chosen)
    told["seconds"]["all"] = time.monotonic() - begun
    out_path.write_text(json.dumps(told))


def planted(moe: Moe, held, one: Captured, stream, chosen: Chosen) -> dict:
    """Defects, and what is said of them: it must be something, and nothing where none is planted."""
    told = {"nothing": one.beside(), "a word that is read": one.holes.planted()[:4]}
    seen = [by for (name, _), by in chosen.seen.items() if name.endswith("gemm1")]
    tried = sorted({int(said.split()[1]) for by in seen for said in by})
    usual = int(next(iter(chosen.seen["trtllm::fused_moe::gemm1", one.tokens])).split()[1])
    told["a tactic that changes"] = ["no other tactic could be run"]
    for tactic in (other for other in (*tried, *range(60)) if other != usual):
        chosen.instead = {"trtllm::fused_moe::gemm1": tactic}
        try:
            with torch.cuda.stream(stream):
                moe(*held[one.tokens])
            torch.cuda.synchronize()
            said = one.beside()
        except Exception:  # a tactic that is not built
            continue
        if said:
            told["a tactic that changes"] = [f"{usual} to {tactic}", *said[:4]]
            break
    chosen.instead = {}
    moe.first = moe.first.clone()  # the old one is freed when nothing else holds it
    freed = len(one.lost())
    told["weights that move"] = [f"{freed} owners freed", *one.beside()[:4]]
    told["freed"] = freed
    return told


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    bound.tell()
