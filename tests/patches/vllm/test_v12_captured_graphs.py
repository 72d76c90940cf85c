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
equal. A grouped CUTLASS GEMM carries two by value, but works with those that it writes itself, on the device, into the
workspace of the call. In its parameter of 1,792 bytes 32 of all parameters' 4,042 words hold what the host's stack
held (they differ between captures made at once); 4 words more of one graph of eight differed later (a stack guard, a
host address, small numbers). The test calls that wrong: that no kernel reads them is not shown. Outputs stayed right.

A tactic that differs between capture and replay. Shown: kernels, launches and the tuner's tactics are equal, for the
engines and for CUTLASS, where tuning had ended before the first capture. A tactic that is changed on purpose is seen.

A synchronization in capture. Argued: capture is global here, in which a call that synchronizes fails the capture.

So the cause stays unknown. What is left: FlashInfer 0.6.1's missing wait before the scheduler reads what the kernel
before it writes (0.6.8 waits), and whatever only 12.x does.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "gpu"))
memory, nodes, record = (importlib.import_module(name) for name in ("memory", "nodes", "record"))

POOL, TENSOR = memory.Place(memory.POOL, 0x7F0000000000, 4096), memory.Place(memory.TENSOR, 0x7E0000000000, 4096)


def graph(*params: bytes, places=(), launch=(1, 1, 1), name="gemm"):
    """One kernel; places as (parameter, offset, place)."""
    return record.Graph("g", "FULL", 8, 0, [nodes.Node("kernel", name, launch, params)], [list(places)], [])


def word(value: int) -> bytes:
    return value.to_bytes(8, "little")


def kinds(old, new, **more):
    return [what for what, _ in record.differences(old, new, **more)]


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


def test_what_the_host_left_in_a_hole_is_told_apart_only_if_asked():
    host = types.SimpleNamespace(holds=lambda value: value in (0, 0x7FFC00000010), padding=lambda one, other: False)
    old, new = graph(word(0)), graph(word(0x7FFC00000010))
    assert kinds(old, new) == ["value"]
    assert kinds(old, new, loose=host) == ["left over"]
    assert kinds(graph(word(0)), graph(word(17)), loose=host) == ["value"]


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
