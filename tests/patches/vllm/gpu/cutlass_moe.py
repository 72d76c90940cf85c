"""FlashInfer's CUTLASS MoE on compute capability 9.0 in CUDA graphs, in BF16: the binding that 12.x runs in MXFP4.

    python cutlass_moe.py RESULT.json

The same binding, tuner, workspace and device-side TMA descriptors; other tiles and types. Graphs of eight sizes in one
pool; replays among eager calls of other, larger sizes, as prefill is beside decode. Nodes, addresses, owners and
tactics are compared at each replay, a capture beside it now and then, its output with an eager call's. Then two
defects are planted, and must be seen: a tactic that changes, and a buffer that moves.

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

import memory
import nodes
import record
import torch
from flashinfer.autotuner import AutoTuner, autotune
from flashinfer.fused_moe import cutlass_fused_moe

EXPERTS, HIDDEN, INNER, TOP = 32, 512, 512, 4
SIZES = (1, 2, 4, 8, 16, 24, 32, 64)
LARGEST = 96
REPLAYS, BESIDE = 3000, 60
# Words of parameters that hold nothing: they differ between captures made one after another, with nothing between.
CONTROLS = 30
VARIES: set[str] = set()
LEFT_OVER: Counter = Counter()
# BF16 products of 512, twice, added up in another order; the sum over experts by atomics where the epilogue does it.
LIMIT = 0.02


class Chosen:
    """Every tactic that the tuner gave: by GEMM and tokens, and whether a graph was being captured."""

    def __init__(self):
        self.seen: dict[tuple[str, int], Counter] = {}
        self.instead: dict[str, int] = {}
        choose = AutoTuner.choose_one

        def watched(tuner, name, runners, config, inputs, **more):
            runner, tactic = choose(tuner, name, runners, config, inputs, **more)
            tactic = self.instead.get(name, tactic)
            if not tuner.is_tuning_mode:
                moment = "captured" if torch.cuda.is_current_stream_capturing() else "eager"
                self.seen.setdefault((name, inputs[0].shape[0]), Counter())[f"{moment} {tactic}"] += 1
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


def capture(moe: Moe, held, pool, stream) -> torch.cuda.CUDAGraph:
    """A graph of one call on the tensors held."""
    graph = record._Kept()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        moe(*held)
    return graph


def read(graph, label: str, tokens: int, held, pool) -> record.Graph:
    """Its nodes and whose memory they point into."""
    raw = int(graph.raw_cuda_graph())
    arguments = [one.data_ptr() for one in held]
    found = record.Graph(label, "FULL", tokens, raw, nodes.nodes(raw), [], arguments)
    where = memory.Map(tuple(pool))
    found.places = [record.addresses(node, where) for node in found.nodes]
    for node, places in zip(found.nodes, found.places, strict=True):
        for number, offset, place in places:
            if place.kind == memory.TENSOR:
                address = int.from_bytes(node.params[number][offset : offset + 8], "little")
                found.owners.append((address, where.owner(place.start, address)))
    return found


def off(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative distance."""
    return float((one.float() - other.float()).norm() / other.float().norm())


def main(out_path: Path) -> None:
    """Tune, capture, replay, compare, plant."""
    begun = time.monotonic()
    chosen, moe, chance = Chosen(), Moe(), random.Random(3)
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
    graphs = {n: capture(moe, held[n], pool, stream) for n in sorted(SIZES, reverse=True)}
    records = {n: read(graph, f"CUTLASS of {n} tokens", n, held[n], pool) for n, graph in graphs.items()}
    found, counts = [], Counter()
    for number in range(CONTROLS):
        for n in SIZES:
            moe(*held[chance.choice((*SIZES, LARGEST)) if number % 2 else n])  # what the stack holds is stirred
            found += beside(moe, held[n], records[n], stream, control=True)
    by_value = sum(len(param) // 8 for one in records.values() for node in one.nodes for param in node.params if len(param) > 8)
    told["words"] = {"of parameters by value": by_value, "that vary between captures made at once": len(VARIES)}
    worst = {"eager": 0.0, "reference": 0.0}
    for number in range(REPLAYS):
        n = chance.choice(SIZES)
        for mine, fresh in zip(held[n][:3], moe.inputs(n), strict=True):
            mine.copy_(fresh)
        if number % 3 == 0:  # a larger batch between two replays, as a prefill is
            m = chance.choice([size for size in (*SIZES, LARGEST) if size != n])
            moe(*held[m])
        now = nodes.nodes(records[n].raw)
        counts["nodes read again"] += len(now)
        if now != records[n].nodes:
            found.append(f"nodes changed: {records[n].label}")
        found += [f"owner freed: {records[n].label} {a:#x}" for a, owner in records[n].owners if not memory.holds(owner, a)]
        counts["owners looked at"] += len(records[n].owners)
        held[n][3].fill_(float("nan"))
        graphs[n].replay()
        counts["replays"] += 1
        if number % 10 == 0:
            replayed = held[n][3].clone()
            moe(*held[n])
            worst["eager"] = max(worst["eager"], off(replayed, held[n][3]))
            worst["reference"] = max(worst["reference"], off(replayed, moe.reference(*held[n][:3])))
            counts["outputs compared"] += 1
        if number % BESIDE == 0:
            found += beside(moe, held[n], records[n], stream)
            counts["captures beside"] += 1
    torch.cuda.synchronize()
    told["seconds"]["replayed"] = time.monotonic() - begun
    kernels = Counter(node.name[:120] for one in records.values() for node in one.nodes if node.kind == "kernel")
    kinds = Counter(place.kind for one in records.values() for places in one.places for *_, place in places)
    large = Counter()
    for one in records.values():
        for node, places in zip(one.nodes, one.places, strict=True):
            for place in {(number, place.kind) for number, _, place in places}:
                if len(node.params[place[0]]) >= nodes.TENSOR_MAP:
                    large[f"{node.name[:60]}: {len(node.params[place[0]])} bytes, {place[1]}"] += 1
    tactics = {f"{name} of {tokens}": dict(one) for (name, tokens), one in chosen.seen.items()}
    told |= {
        "counts": dict(counts), "found": found[:40], "wrong": len(found), "worst": worst, "limit": LIMIT,
        "tactics": tactics, "differing tactics": chosen.differing(), "left over": dict(LEFT_OVER.most_common(60)), "kernels": dict(kernels), "addresses": dict(kinds),
        "nodes": {n: len(one.nodes) for n, one in records.items()}, "large parameters with addresses": dict(large),
    }  # fmt: skip
    out_path.write_text(json.dumps(told))
    told["planted"] = planted(moe, held, records, stream, chosen)
    told["seconds"]["all"] = time.monotonic() - begun
    out_path.write_text(json.dumps(told))


def beside(moe: Moe, held, known: record.Graph, stream, control: bool = False) -> list[str]:
    """What a capture made now holds that the graph does not; what is left over in parameters is counted apart."""
    pool = torch.cuda.graph_pool_handle()
    other = capture(moe, held, pool, stream)
    new = read(other, known.label, known.tokens, held, pool)
    found = []
    for what, said in record.differences(known, new, memory.Host()):
        word, values = said.split(" node ", 1)[1].split(": ", 1) if what != "tactic" else ("", said)
        # In a control nothing has changed: a word that does holds nothing, unless memory of a tensor is in it.
        nobodys = not any(kind in values for kind in (memory.TENSOR, memory.BLOCK, memory.OTHER, memory.FREE))
        if control and what != "tactic" and nobodys:
            VARIES.add(word)
        elif what == "left over" or (word in VARIES and nobodys):
            LEFT_OVER[word] += 1
        else:
            found.append(f"captured now, {what}: {said}")
    other.reset()
    return found


def planted(moe: Moe, held, records, stream, chosen: Chosen) -> dict:
    """Defects, and what is said of them: it must be something, and nothing where none is planted."""
    told = {"nothing": beside(moe, held[8], records[8], stream)}
    tried = sorted({int(one.split()[1]) for (name, _), seen in chosen.seen.items() if name.endswith("gemm1") for one in seen})
    usual = int(next(iter(chosen.seen["trtllm::fused_moe::gemm1", 8])).split()[1])
    candidates = [one for one in (*tried, *range(60)) if one != usual]
    told["a tactic that changes"] = ["no other tactic could be run"]
    for tactic in candidates:
        chosen.instead = {"trtllm::fused_moe::gemm1": tactic}
        try:
            with torch.cuda.stream(stream):
                moe(*held[8])
            torch.cuda.synchronize()
            said = beside(moe, held[8], records[8], stream)
        except Exception:  # noqa: S112  a tactic that is not built
            continue
        if said:
            told["a tactic that changes"] = [f"{usual} to {tactic}", *said[:4]]
            break
    chosen.instead = {}
    moe.first = moe.first.clone()  # the old one is freed when nothing else holds it
    freed = sum(not memory.holds(owner, address) for address, owner in records[8].owners)
    told["weights that move"] = [f"{freed} owners freed", *beside(moe, held[8], records[8], stream)[:4]]
    told["freed"] = freed
    return told


if __name__ == "__main__":
    main(Path(sys.argv[1]))
