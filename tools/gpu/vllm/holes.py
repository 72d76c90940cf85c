"""Bits of kernel parameters that nobody set, and whether a kernel reads them.

A parameter passed by value has holes: padding, members that a constructor leaves alone. What stands in them is what the
host's stack held, so captures of one thing differ there. To find them, captures are made with the stack filled with one
pattern and another. That no kernel reads them is shown, not argued: a clone of the graph gets other bits there, and its
output must be equal bit by bit. That such a change is seen where a kernel does read is shown on a word that it reads.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import memory
import nodes
import record
import torch

ONES = 0xFFFFFFFFFFFFFFFF
STACK = (0xAAAAAAAAAAAAAAAA, 0x5555555555555555, 0xC3A59669F00F1E87, 0x3C5A69960FF0E178)
# Each hole has every bit set and cleared, and words that look like sizes, addresses of the device, NaN.
SCRIBBLED = (0, ONES, 0xA5A5A5A55A5A5A5A, 0x5A5A5A5AA5A5A5A5, 0x00007F5C00000010, 0x7FF8000000000001)
_FILL = """
extern "C" void fill(unsigned long long word) {
  volatile unsigned long long held[1 << 16];
  for (int at = 0; at < 1 << 16; ++at) held[at] = word;
}
"""

Word = tuple[int, int, int]  # node, parameter, offset
Launch = Callable[[int], list[torch.Tensor]]  # takes an executable graph, gives its outputs


class Stack:
    """Fills what lies below the caller's frame with a word, as often as it is asked."""

    def __init__(self, folder: Path):
        """Compile the filler into the folder."""
        source, library = folder / "fill.cpp", folder / "libfill.so"
        source.write_text(_FILL)
        subprocess.run(["c++", "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
        self._fill = ctypes.CDLL(str(library)).fill
        self._fill.argtypes = (ctypes.c_uint64,)
        self.word: int | None = None

    def fill(self) -> None:
        """With `word`, where one is set."""
        if self.word is not None:
            self._fill(self.word)


class Holes:
    """The holes of one graph: bits that differed between captures and were shown to matter to no kernel.

    Attributes:
        bits: of each word the bits known so far.
        launches: how many scribbled clones were run.
    """

    def __init__(self, graph: record.Graph, launch: Launch, run: Callable[[], list[torch.Tensor]]):
        """`launch` runs an executable graph and gives what it put out, `run` the same of the graph itself."""
        self.graph, self._launch = graph, launch
        self.bits: dict[Word, int] = {}
        self.launches = 0
        self._wanted = run()
        self.repeats = _equal(self._wanted, run())

    def new(self, other: record.Graph) -> tuple[dict[Word, int], list[str]]:
        """Bits outside the known holes in which another capture differs; apart, addresses of memory that moved.

        An address is never scribbled: where it is read, the kernel would fault. Two captures have each their own places
        in the pool: those may differ.
        """
        found: dict[Word, int] = {}
        moved = []
        for word, was, now, kinds in record.changed(self.graph, other):
            more = (was ^ now) & ~self.bits.get(word, 0)
            if not more or kinds == (memory.POOL, memory.POOL):
                continue
            if set(kinds) <= {memory.NOT_ONE, memory.POOL}:
                found[word] = more
            else:
                moved.append(f"{self.named(word)}: {was:#x} {kinds[0]}, now {now:#x} {kinds[1]}")
        return found, moved

    def unread(self, found: dict[Word, int]) -> list[Word]:
        """Take the bits for holes if outputs stay equal whatever stands there; else the words that matter."""
        if self._same(found):
            for word, bits in found.items():
                self.bits[word] = self.bits.get(word, 0) | bits
            return []
        if len(found) == 1:
            return list(found)
        # One by one: most hold nothing, and the one that is read is to be named.
        return [word for one in found for word in self.unread({one: found[one]})]

    def still_unread(self) -> bool:
        """Whether all of them together, scribbled at once, change nothing."""
        return self._same(self.bits)

    def _same(self, found: dict[Word, int]) -> bool:
        return self.repeats and not any(self.seen(found, value) for value in SCRIBBLED)

    def seen(self, found: dict[Word, int], value: int) -> bool:
        """Whether the output is another with these bits of the value in these words."""
        with clone(self.graph.raw, scribbled(self.graph.nodes, found, value)) as executable:
            self.launches += 1
            return not _equal(self._wanted, self._launch(executable))

    def read_words(self) -> dict[Word, int]:
        """Words that a kernel reads, and may read changed without harm: parts of parameters by value that hold 1.0.

        Returns: the bits to flip, which make 2.0 of it.
        """
        one, two = (struct.unpack("<I", struct.pack("<f", value))[0] for value in (1.0, 2.0))
        found: dict[Word, int] = {}
        for number, node in enumerate(self.graph.nodes):
            for place, param in enumerate(node.params if node.kind == "kernel" else ()):
                for offset, word in nodes.words(param) if len(param) >= nodes.TENSOR_MAP else ():
                    for shift in (0, 32):
                        if (word >> shift) & 0xFFFFFFFF == one:
                            found[number, place, offset] = found.get((number, place, offset), 0) | (one ^ two) << shift
        return found

    def planted(self) -> list[str]:
        """Words that are read, each with another value: those whose change was seen."""
        said = []
        for word, bits in self.read_words().items():
            number, place, offset = word
            now = int.from_bytes(self.graph.nodes[number].params[place][offset : offset + 8], "little") ^ bits
            if self.seen({word: bits}, now):
                said.append(f"{self.named(word)}: 2.0 for 1.0")
        return said

    def named(self, word: Word) -> str:
        """Kernel, parameter and offset of a word."""
        number, place, offset = word
        node = self.graph.nodes[number]
        of = f"{self.graph.label} node {number} {node.name[:60]}"
        return f"{of} parameter {place} of {len(node.params[place])} bytes at {offset}"


def scribbled(of: list[nodes.Node], found: dict[Word, int], value: int) -> dict[int, tuple[bytes, ...]]:
    """Parameters of the nodes that hold such words, with the bits of the value in the bits found."""
    params = {number: [bytearray(one) for one in of[number].params] for number, _, _ in found}
    for (number, place, offset), bits in found.items():
        held = params[number][place]
        word = int.from_bytes(held[offset : offset + 8], "little")
        held[offset : offset + 8] = (word & ~bits | value & bits).to_bytes(8, "little")[: len(held) - offset]
    return {number: tuple(map(bytes, changed)) for number, changed in params.items()}


@contextlib.contextmanager
def clone(graph: int, params: dict[int, tuple[bytes, ...]]) -> Iterator[int]:
    """An executable graph like this cudaGraph_t, in which kernels have other parameters."""
    copy, executable = ctypes.c_void_p(), ctypes.c_void_p()
    nodes.ask("cuGraphClone", ctypes.byref(copy), ctypes.c_void_p(graph))
    try:
        handles = nodes.handles(graph)
        for number, changed in params.items():
            node = ctypes.c_void_p()
            nodes.ask("cuGraphNodeFindInClone", ctypes.byref(node), ctypes.c_void_p(handles[number]), copy)
            nodes.set_params(node.value or 0, changed)
        nodes.ask("cuGraphInstantiateWithFlags", ctypes.byref(executable), copy, ctypes.c_ulonglong(0))
        try:
            yield executable.value or 0
        finally:
            nodes.ask("cuGraphExecDestroy", executable)
    finally:
        nodes.ask("cuGraphDestroy", copy)


def launch(executable: int, stream: int) -> None:
    """Run an executable graph."""
    nodes.ask("cuGraphLaunch", ctypes.c_void_p(executable), ctypes.c_void_p(stream))


def takes(word: int, pattern: int) -> bool:
    """Whether a word, or a half of it, is what the stack was filled with."""
    halves = [(one & 0xFFFFFFFF, one >> 32) for one in (word, pattern)]
    return any(one == other for one, other in zip(*halves, strict=True))


def _equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Bit by bit."""
    same = [torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip(one, other, strict=True)]
    return bool(same) and all(same)
