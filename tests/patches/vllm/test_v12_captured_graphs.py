"""V-12: what captured graphs hold. The public record: an illegal memory access on replay after minutes of mixed prefill
and decode with the CUTLASS MXFP4 MoE on 12.x, gone in eager mode and with Marlin. The suspects, and what was found.

Shown natively is what `gpu/run_all.py --only captured` saw on compute capability 9.0: four engines (Marlin, FlashInfer
sinks in BF16 and FP8 KV, Triton, n-gram) and FlashInfer's CUTLASS MoE binding alone, in BF16. The MXFP4 kernels of 12.x
ran nowhere: for them it is argued from the same source.

Addresses that go stale. Shown for the engines: every address in every parameter is the graphs' private pool or memory
that a living tensor holds; at 53,208 replays each owner lived, in its place. In the CUTLASS binding the same, over
3,000 replays with other sizes in between.

Workspaces that move, or are sized for another M. Shown: Marlin's and FlashInfer's workspaces keep their addresses, in
1,446 captures made on the very step to be replayed and in a second capture of all sizes. CUTLASS: argued and shown;
a call allocates its workspace from the torch allocator, so a captured one lies in the graphs' pool, sized by its own M.

Stale TMA descriptors. Shown in part: no kernel of the engines takes one by value except cuBLAS's, whose bytes stay
equal. A grouped CUTLASS GEMM carries some by value, but works with those that it writes itself, on the device, into the
workspace of the call. Its parameter has holes, which hold what the host's stack held, and so differ between captures;
four words of an earlier run that differed late, at 1472 to 1519 of 1,792 bytes, lie in the padding of the epilogue's
part, 1452 to 1535 (`gpu/cutlass_params.cu`). `gpu/holes.py` finds holes, with the stack filled with patterns, and
writes over them in clones of the graphs: the outputs must stay equal, bit by bit.

A tactic that differs between capture and replay. Shown: kernels, launches and the tuner's tactics are equal, for the
engines and for CUTLASS, where tuning had ended before the first capture. A tactic that is changed on purpose is seen.

A synchronization in capture. Argued: capture is global here, in which a call that synchronizes fails the capture.

So the cause stays unknown. What is left: FlashInfer 0.6.1's missing wait before the scheduler reads what the kernel
before it writes (0.6.8 waits), and whatever only 12.x does.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "tools" / "gpu" / "vllm"))
holes, memory, nodes, record = (importlib.import_module(name) for name in ("holes", "memory", "nodes", "record"))

POOL, TENSOR = memory.Place(memory.POOL, 0x7F0000000000, 4096), memory.Place(memory.TENSOR, 0x7E0000000000, 4096)


def graph(*params: bytes, places=(), launch=(1, 1, 1), name="gemm"):
    """One kernel; places as (parameter, offset, place)."""
    return record.Graph("g", "FULL", 8, 0, [nodes.Node("kernel", name, launch, params)], [list(places)], [])


def word(value: int) -> bytes:
    return value.to_bytes(8, "little")


def kinds(old, new):
    return [what for what, _ in record.differences(old, new)]


def test_equal_captures_differ_in_nothing():
    assert kinds(graph(word(5)), graph(word(5))) == []


def test_a_place_in_the_pool_may_be_another():
    old = graph(word(0x7F0000000000), places=[(0, 0, POOL)])
    new = graph(word(0x7F0000000800), places=[(0, 0, POOL)])
    assert kinds(old, new) == []


@pytest.mark.parametrize("place", [TENSOR, memory.Place(memory.BLOCK), memory.Place(memory.FREE), POOL])
def test_memory_that_moves_is_seen(place):
    """A workspace that was allocated again, or one that the graph has in its pool and a call of now elsewhere."""
    old = graph(word(0x7E0000000000), places=[(0, 0, TENSOR)])
    new = graph(word(0x7E0000000800), places=[(0, 0, place)])
    assert kinds(old, new) == ["address"]


def test_a_descriptor_that_changes_in_any_word_is_seen():
    """128 bytes by value; its address stays, its box does not."""
    old = bytearray(128)
    old[:8] = word(0x7E0000000000)
    new = bytearray(old)
    new[40] = 1
    places = [(0, 0, TENSOR)]
    assert kinds(graph(bytes(old), places=places), graph(bytes(new), places=places)) == ["value"]


@pytest.mark.parametrize("change", [{"launch": (2, 1, 1)}, {"name": "other"}])
def test_another_tactic_is_seen(change):
    assert kinds(graph(word(5)), graph(word(5), **change)) == ["tactic"]


def test_a_kernel_more_is_seen():
    more = graph(word(5))
    more.nodes.append(more.nodes[0])
    assert kinds(graph(word(5)), more) == ["tactic"]


@pytest.fixture
def device(monkeypatch):
    """A graph whose output is what its kernel reads of its parameter; clones and launches without a driver."""
    import torch

    held = graph(word(0xAAAA) + word(0x3F800000) + word(7) + bytes(104))
    reads = {16: 0xFF, 8: (1 << 64) - 1}

    def outputs(params):
        seen = [int.from_bytes(params[0][at : at + 8], "little") & bits for at, bits in reads.items()]
        return [torch.tensor([one & 0xFFFFFFFF for one in seen], dtype=torch.int32)]

    @contextlib.contextmanager
    def clone(raw, params):
        yield params.get(0, held.nodes[0].params)

    monkeypatch.setattr(holes, "clone", clone)
    return holes.Holes(held, outputs, lambda: outputs(held.nodes[0].params)), held


def recaptured(held, **changes):
    """Another capture, with other words at some offsets."""
    param = bytearray(held.nodes[0].params[0])
    for at, value in changes.items():
        param[int(at[2:]) : int(at[2:]) + 8] = word(value)
    return graph(bytes(param))


def test_what_no_kernel_reads_is_a_hole(device):
    found, held = device
    bits, moved = found.new(recaptured(held, at0=0x5555, at24=9))
    assert (bits, moved) == ({(0, 0, 0): 0xFFFF, (0, 0, 24): 9}, [])
    assert found.unread(bits) == []
    assert found.new(recaptured(held, at0=0x1111)) == ({}, [])
    assert found.new(recaptured(held, at0=0x11111))[0] == {(0, 0, 0): 0x10000}
    assert found.still_unread()
    assert found.launches > 2


def test_the_word_that_is_read_is_named_among_those_that_are_not(device):
    found, held = device
    bits, _ = found.new(recaptured(held, at0=0x5555, at16=6, at24=9))
    assert found.unread(bits) == [(0, 0, 16)]
    assert set(found.bits) == {(0, 0, 0), (0, 0, 24)}
    assert "at 16" in found.named((0, 0, 16))


def test_a_bit_beside_those_that_are_read_is_a_hole_all_the_same(device):
    found, held = device
    bits, _ = found.new(recaptured(held, at16=7 + 0x100))
    assert found.unread(bits) == []


def test_an_address_that_moved_is_never_scribbled(device):
    found, held = device
    held.places[0].append((0, 0, TENSOR))
    bits, moved = found.new(recaptured(held, at0=0x7E0000000800))
    assert bits == {}
    assert len(moved) == 1
    assert found.launches == 0


def test_nothing_is_a_hole_where_outputs_do_not_repeat(device):
    import torch

    _, held = device
    count = iter(range(9))
    found = holes.Holes(held, lambda _: [torch.tensor([0])], lambda: [torch.tensor([next(count)])])
    assert found.unread({(0, 0, 0): 1}) == [(0, 0, 0)]
    assert not found.still_unread()


def test_a_word_that_is_read_is_seen_when_it_changes(device):
    found, _ = device
    assert found.read_words() == {(0, 0, 8): 0x3F800000 ^ 0x40000000}
    assert found.planted() == [f"{found.named((0, 0, 8))}: 2.0 for 1.0"]


def test_scribbling_changes_the_bits_named_and_no_other():
    of = [nodes.Node("kernel", "gemm", (), (word(0xFF00), word(1) + b"\x01\x02\x03\x04"))]
    found = holes.scribbled(of, {(0, 0, 0): 0xF0F0, (0, 1, 8): 0xFF}, holes.ONES)
    assert found == {0: (word(0xFFF0), word(1) + b"\xff\x02\x03\x04")}


def test_a_word_or_a_half_that_the_stack_left():
    assert holes.takes(0xAAAAAAAA00000001, 0xAAAAAAAAAAAAAAAA)
    assert not holes.takes(0xAAAAAAA100000001, 0xAAAAAAAAAAAAAAAA)


def test_memory_freed_beneath_its_tensor_is_seen():
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    tensor = torch.zeros(8)
    owner, address = StorageWeakRef(tensor.untyped_storage()), tensor.data_ptr() + 8
    assert memory.holds(owner, address)
    tensor.untyped_storage().resize_(0)
    assert not memory.holds(owner, address)
    tensor = torch.zeros(8)
    owner, address = StorageWeakRef(tensor.untyped_storage()), tensor.data_ptr()
    del tensor
    assert not memory.holds(owner, address)


def test_words_of_a_parameter():
    assert nodes.words(word(1) + word(2) + b"123") == [(0, 1), (8, 2)]
