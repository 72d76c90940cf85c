"""What the captured CUDA graphs of an engine hold, and whether it still stands at each replay.

At capture, of each graph: every node with the bytes of its parameters, the addresses among them and whose memory they
are, the tensors that own it, the arguments' addresses. Before a replay: the owners alive and in their place, the
arguments where they were. (What the executable graph holds cannot be read back.) Now and then, on the very step that is about to be replayed, a capture into
a pool of its own that is thrown away: what the graph would hold if it were captured now. In the end all sizes are
captured anew by vLLM's own code, and both are compared. A difference is one line that names kernel and parameter.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest.mock import patch

import memory
import nodes
import torch
from memory import BLOCK, FREE, NOT_ONE, OTHER, POOL, TENSOR

MOST_SAID = 40


@dataclass
class Graph:
    """One captured graph."""

    label: str
    mode: str
    tokens: int
    raw: int
    nodes: list[nodes.Node]
    places: list[list[tuple[int, int, memory.Place]]]  # of each node: parameter, offset, place
    arguments: list[int]
    owners: list[tuple[int, object]] = field(default_factory=list)  # address, weak reference of the storage
    replays: int = 0


def addresses(node: nodes.Node, where: memory.Map) -> list[tuple[int, int, memory.Place]]:
    """Parameter, offset and place of each word of a node that is an address."""
    found = []
    for number, param in enumerate(node.params):
        for offset, word in nodes.words(param):
            place = where.place(word)
            if place.kind != NOT_ONE:
                found.append((number, offset, place))
    return found


def changed(old: Graph, new: Graph) -> Iterator[tuple[tuple[int, int, int], int, int, tuple[str, str]]]:
    """Words in which two captures of the same kernels differ: node, parameter and offset; before and now; what they are."""
    for at, (one, other) in enumerate(zip(old.nodes, new.nodes, strict=True)):
        if one.tactic() != other.tactic():
            continue
        mine = {(number, offset): place.kind for number, offset, place in old.places[at]}
        theirs = {(number, offset): place.kind for number, offset, place in new.places[at]}
        for number, (was, now) in enumerate(zip(one.params, other.params, strict=True)):
            for offset in range(0, len(was) if was != now else 0, 8):
                words = [int.from_bytes(param[offset : offset + 8], "little") for param in (was, now)]
                if words[0] != words[1]:
                    kinds = (mine.get((number, offset), NOT_ONE), theirs.get((number, offset), NOT_ONE))
                    yield (at, number, offset), *words, kinds


def differences(old: Graph, new: Graph) -> list[tuple[str, str]]:
    """What differs between two captures of one thing, each as (what, a sentence).

    what: "tactic", another kernel or launch; "address", memory outside the graph's own pool that moved; "value", any
    other word: sizes, fields of TMA descriptors. Two captures have each their own places in the pool: those may differ.
    """
    if len(old.nodes) != len(new.nodes):
        return [("tactic", f"{old.label}: {len(old.nodes)} nodes, now {len(new.nodes)}")]
    found = []
    for at, (one, other) in enumerate(zip(old.nodes, new.nodes, strict=True)):
        if one.tactic() != other.tactic():
            said = f"{one.name[:60]} {one.launch}, now {other.name[:60]} {other.launch}"
            found.append(("tactic", f"{old.label} node {at}: {said}"))
    for (at, number, offset), was, now, kinds in changed(old, new):
        if kinds != (POOL, POOL):
            node = old.nodes[at]
            said = f"{old.label} node {at} {node.name[:60]} parameter {number} of {len(node.params[number])} bytes at {offset}"
            what = "value" if kinds == (NOT_ONE, NOT_ONE) else "address"
            found.append((what, f"{said}: {was:#x} {kinds[0]}, now {now:#x} {kinds[1]}"))
    return found


class _Kept(torch.cuda.CUDAGraph):
    """A graph whose nodes stay readable after it was instantiated."""

    def __new__(cls, keep_graph: bool = True):  # noqa: ARG004  kept whatever is asked for
        return super().__new__(cls, True)

    def __init__(self, keep_graph: bool = True):  # noqa: ARG002  the compiled class is made here, with its own default
        super().__init__(True)


class Recorder:
    """Watches every CUDAGraphWrapper of this process.

    Attributes:
        graphs: by (wrapper, batch descriptor).
        again: every how many replays of one graph a capture is made beside it; 0 never.
        found: what was wrong, one sentence each, at most MOST_SAID of a kind; `counts` has them all.
        told: values of a whole model's graph that follow the batch, by kernel.
    """

    def __init__(self):
        self.graphs: dict[tuple[int, object], Graph] = {}
        self.wrappers: dict[int, object] = {}
        self.again = 0
        self.watching = False
        self.counts: Counter = Counter()
        self.found: list[str] = []
        self.told: Counter = Counter()
        self.pool: tuple[int, int] | None = None
        self.stream: torch.cuda.Stream | None = None

    def wrong(self, what: str, said: str) -> None:
        """Take down one difference."""
        self.counts[f"wrong: {what}"] += 1
        if self.counts[f"wrong: {what}"] <= MOST_SAID:
            self.found.append(f"{what}: {said}")

    # ---- capture

    def install(self) -> None:
        """Before the engine is made."""
        from vllm.compilation.cuda_graph import CUDAGraphWrapper
        from vllm.forward_context import get_forward_context, is_forward_context_available

        torch.cuda.CUDAGraph = _Kept
        call, recorder = CUDAGraphWrapper.__call__, self

        def watched(wrapper, *args, **kwargs):
            if not is_forward_context_available():
                return call(wrapper, *args, **kwargs)
            context = get_forward_context()
            if context.cudagraph_runtime_mode != wrapper.runtime_mode:
                return call(wrapper, *args, **kwargs)
            key = (id(wrapper), context.batch_descriptor)
            entry = wrapper.concrete_cudagraph_entries.get(context.batch_descriptor)
            if entry is not None and entry.cudagraph is not None:
                recorder.replayed(key, wrapper, entry, args, kwargs)
                return call(wrapper, *args, **kwargs)
            stream = torch.cuda.current_stream()
            out = call(wrapper, *args, **kwargs)
            entry = wrapper.concrete_cudagraph_entries[context.batch_descriptor]
            recorder.captured(key, wrapper, entry.cudagraph, stream, args, kwargs)
            return out

        CUDAGraphWrapper.__call__ = watched

    def captured(self, key, wrapper, graph, stream, args, kwargs) -> None:
        """Take the nodes down; whose memory they point into is looked up when all sizes are captured."""
        self.pool, self.stream = tuple(wrapper.graph_pool), stream
        self.wrappers[id(wrapper)] = wrapper
        self.graphs[key] = self._read(key, wrapper, graph, args, kwargs)

    def _read(self, key, wrapper, graph, args, kwargs) -> Graph:
        number = list(self.wrappers).index(id(wrapper))
        mode = wrapper.runtime_mode.name
        raw = int(graph.raw_cuda_graph())
        label = f"{mode} {number} of {key[1].num_tokens} tokens"
        return Graph(label, mode, key[1].num_tokens, raw, nodes.nodes(raw), [], _addresses_of(args, kwargs))

    def settle(self) -> None:
        """After the last capture, before the first replay: whose memory each address is."""
        where = memory.Map(self.pool)
        for graph in self.graphs.values():
            self._settle(graph, where)
        self.watching = True

    def _settle(self, graph: Graph, where: memory.Map) -> None:
        graph.places = [addresses(node, where) for node in graph.nodes]
        seen: set[int] = set()
        for node, places in zip(graph.nodes, graph.places, strict=True):
            for number, offset, place in places:
                if place.kind == FREE:
                    self.wrong("stale at capture", f"{graph.label} {node.name[:60]} parameter {number}+{offset}")
                address = int.from_bytes(node.params[number][offset : offset + 8], "little")
                if place.kind == TENSOR and address not in seen:
                    seen.add(address)
                    graph.owners.append((address, where.owner(place.start, address)))

    # ---- replay

    def replayed(self, key, wrapper, entry, args, kwargs) -> None:
        """Before a replay."""
        graph = self.graphs.get(key)
        if not self.watching or graph is None:
            self.counts["replays not watched"] += 1
            return
        graph.replays += 1
        self.counts[f"replays {graph.mode}"] += 1
        if _addresses_of(args, kwargs) != graph.arguments:
            self.wrong("argument moved", graph.label)
        if int(entry.cudagraph.raw_cuda_graph()) != graph.raw:
            self.wrong("another graph", graph.label)
        for address, owner in graph.owners:
            if not memory.holds(owner, address):
                self.wrong("owner freed", f"{graph.label}: what held {address:#x}")
            self.counts["owners looked at"] += 1
        if self.again and (graph.replays - 1) % self.again == 0:
            self.beside(graph, key, wrapper, args, kwargs)

    def beside(self, graph: Graph, key, wrapper, args, kwargs) -> None:
        """Capture the step that is about to be replayed, compare, and throw it away."""
        other = _Kept()
        pool = torch.cuda.graph_pool_handle()
        with contextlib.ExitStack() as stack:
            # As vLLM does for all graphs but the first: both are slow and change nothing here.
            stack.enter_context(patch("gc.collect", lambda *_, **__: None))
            stack.enter_context(patch("torch.cuda.empty_cache", lambda *_, **__: None))
            stack.enter_context(
                torch.cuda.graph(other, pool=pool, stream=self.stream, capture_error_mode="thread_local")
            )
            out = wrapper.runnable(*args, **kwargs)
        del out
        new = self._read(key, wrapper, other, args, kwargs)
        where = memory.Map(tuple(pool), tensors=False)
        new.places = [addresses(node, where) for node in new.nodes]
        whole = graph.mode == "FULL"
        self.counts[f"captures beside {graph.mode}"] += 1
        for what, said in differences(graph, new):
            # Attention inside a whole model's graph is captured for the longest context; the batch's own is shorter.
            # Sizes and splits may follow it, memory may not.
            if whole and what != "address" and _attends(said):
                self.told[f"{what}: {said.split(' node ')[1].split(' ', 1)[1][:90]}"] += 1
            else:
                self.wrong(f"captured now, {what}", said)
        other.reset()

    def anew(self, runner) -> None:
        """Capture every size again by vLLM's own code and compare all of it; no request may be under way."""
        before, held = self.graphs, {}
        for number, wrapper in self.wrappers.items():
            held[number] = dict(wrapper.concrete_cudagraph_entries)
            wrapper.concrete_cudagraph_entries.clear()
        from vllm.compilation.monitor import set_cudagraph_capturing_enabled

        self.graphs, self.watching = {}, False
        set_cudagraph_capturing_enabled(True)
        try:
            with runner._freeze_gc(), torch.cuda.stream(self.stream):
                for mode, descriptors in runner.cudagraph_dispatcher.get_capture_descs():
                    runner._capture_cudagraphs(batch_descriptors=descriptors, cudagraph_runtime_mode=mode)
            torch.cuda.synchronize()
        finally:
            set_cudagraph_capturing_enabled(False)
        where = memory.Map(self.pool)
        after = self.graphs
        for graph in after.values():
            graph.places = [addresses(node, where) for node in graph.nodes]
        for key, graph in before.items():
            self.counts["captured anew"] += 1
            for what, said in differences(graph, after[key]) if key in after else [("tactic", f"{graph.label}: gone")]:
                self.wrong(f"captured anew, {what}", said)
            for node, places in zip(graph.nodes, graph.places, strict=True):
                for number, offset, place in places:
                    address = int.from_bytes(node.params[number][offset : offset + 8], "little")
                    now = where.place(address)
                    if now != place and place.kind != OTHER:
                        self.wrong(
                            "owner changed", f"{graph.label} {node.name[:60]} {number}+{offset}: {place}, now {now}"
                        )
        self.graphs, self.watching = before, True
        for number, wrapper in self.wrappers.items():
            wrapper.concrete_cudagraph_entries.clear()
            wrapper.concrete_cudagraph_entries.update(held[number])

    # ---- telling

    def listing(self, named: dict[int, str]) -> dict:
        """Everything captured, in numbers and by name: graphs, kernels, owners of the memory they point into."""
        kernels: Counter = Counter()
        owners: Counter = Counter()
        kinds: Counter = Counter()
        large: Counter = Counter()
        tactics: dict[str, set] = {}
        for graph in self.graphs.values():
            for node, places in zip(graph.nodes, graph.places, strict=True):
                kinds[node.kind] += 1
                if node.kind == "kernel":
                    kernels[node.name[:90]] += 1
                    tactics.setdefault(node.name[:90], set()).add((graph.tokens, node.launch))
                for number, _, place in places:
                    owners[place.kind] += 1
                    if place.kind in (TENSOR, BLOCK):
                        large[named.get(place.start, f"{place.kind} of {place.size} bytes")] += 1
                    if len(node.params[number]) >= nodes.TENSOR_MAP:
                        kinds["addresses in parameters of 128 bytes or more"] += 1
                kinds["parameters"] += len(node.params)
                kinds["parameters of 128 bytes or more"] += sum(len(one) >= nodes.TENSOR_MAP for one in node.params)
        return {
            "graphs": dict(Counter(f"{graph.mode} of {graph.tokens}" for graph in self.graphs.values())),
            "nodes": dict(kinds),
            "kernels": dict(kernels.most_common(60)),
            "launches of a kernel": {name: len(found) for name, found in tactics.items()},
            "addresses": dict(owners),
            "owners": dict(large.most_common(400)),
        }

    def result(self) -> dict:
        """What was seen at the replays."""
        return {"counts": dict(self.counts), "found": self.found, "told": dict(self.told.most_common(60))}


def _attends(said: str) -> bool:
    lowered = said.lower()
    return any(
        word in lowered for word in ("attention", "prefillwithkv", "decodewithkv", "reduce_segments", "mergestates")
    )


def _addresses_of(args, kwargs) -> list[int]:
    return [one.data_ptr() for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
