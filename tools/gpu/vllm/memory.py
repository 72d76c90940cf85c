"""Whose memory an address is: a graph's private pool, a tensor that lives, an allocator's block, or nobody's."""

from __future__ import annotations

import bisect
import gc
from dataclasses import dataclass

import nodes
import torch
from torch.multiprocessing.reductions import StorageWeakRef

NOT_ONE = "not an address"
POOL = "graph's pool"
TENSOR = "tensor"
BLOCK = "block without a tensor"  # of the allocator, in use, owned by compiled code: cuBLAS's workspace
OTHER = "allocation of a library"
FREE = "free memory"


@dataclass(frozen=True)
class Place:
    """What an address points into.

    Attributes:
        kind: of the names above.
        start: of what it points into.
        size: bytes of it.
    """

    kind: str
    start: int = 0
    size: int = 0


class Map:
    """The device's memory at one moment, as the allocator and Python know it."""

    def __init__(self, pool: tuple[int, int] | None, tensors: bool = True):
        """Take it down; `pool` is the id of the private pool of the graphs, `tensors` False leaves owners out."""
        self.pool = pool
        self.segments = sorted(
            (one["address"], one["address"] + one["total_size"], tuple(one["segment_pool_id"]), one["blocks"])
            for one in torch.cuda.memory_snapshot()
        )
        self.starts = [one[0] for one in self.segments]
        self.storages = _storages() if tensors else []
        self.storage_starts = [one[0] for one in self.storages]

    def place(self, address: int) -> Place:
        """Whose it is."""
        if address < 1 << 32 or address >> 48:
            return Place(NOT_ONE)
        at = bisect.bisect_right(self.starts, address) - 1
        if at < 0 or address >= self.segments[at][1]:
            found = nodes.range_of(address)
            return Place(OTHER, *found) if found else Place(NOT_ONE)
        start, end, pool, blocks = self.segments[at]
        if pool != (0, 0):
            return Place(POOL if pool == self.pool else FREE, start, end - start)
        for block in blocks:
            if block["address"] <= address < block["address"] + block["size"]:
                if block["state"] != "active_allocated":
                    return Place(FREE, block["address"], block["size"])
                kind = BLOCK if self.owner(block["address"], address) is None else TENSOR
                return Place(kind, block["address"], block["size"])
        return Place(FREE, start, end - start)

    def owner(self, start: int, address: int) -> StorageWeakRef | None:
        """A weak reference to the storage of a living tensor that begins in the block at `start` and holds `address`."""
        at = bisect.bisect_right(self.storage_starts, address) - 1
        while at >= 0 and self.storages[at][0] >= start:
            if address < self.storages[at][1]:
                return self.storages[at][2]
            at -= 1
        return None


def holds(owner: StorageWeakRef, address: int) -> bool:
    """Whether the storage lives and its memory still holds the address: it may have been freed beneath its tensors."""
    storage = torch.UntypedStorage._new_with_weak_ptr(owner.cdata)
    return storage is not None and storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes()


def _storages() -> list[tuple[int, int, StorageWeakRef]]:
    """Start, end and weak reference of each storage on the device that some Python tensor holds."""
    found: dict[int, tuple[int, int, StorageWeakRef]] = {}
    gc.unfreeze()  # vLLM freezes what it has made; what is frozen is not told
    for one in gc.get_objects():
        try:
            if not isinstance(one, torch.Tensor) or not one.is_cuda or one.layout is not torch.strided:
                continue
            storage = one.untyped_storage()
            start, size = storage.data_ptr(), storage.nbytes()
        except Exception:  # a fake or half-made tensor has no memory
            continue
        if start and size and start not in found:
            found[start] = (start, start + size, StorageWeakRef(storage))
    return sorted(found.values(), key=lambda one: one[:2])


def names(roots: dict[str, object], depth: int = 5) -> dict[int, str]:
    """Name of each storage that can be reached from the objects given, by its start."""
    found: dict[int, str] = {}
    seen: set[int] = set()
    waiting = [(name, one, depth) for name, one in roots.items()]
    while waiting:
        name, one, left = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            if one.is_cuda:
                found.setdefault(one.untyped_storage().data_ptr(), name)
            continue
        if left == 0 or isinstance(one, (str, bytes, int, float, type)):
            continue
        if isinstance(one, torch.nn.Module):
            waiting += [(f"{name}.{key}", value, 2) for key, value in one.named_parameters()]
            waiting += [(f"{name}.{key}", value, 2) for key, value in one.named_modules() if key]
        if isinstance(one, dict):
            inner = list(one.items())
        elif isinstance(one, (list, tuple, set)):
            inner = list(enumerate(one))
        else:
            inner = list(getattr(one, "__dict__", {}).items())
        waiting += [(f"{name}.{key}", value, left - 1) for key, value in inner[:400]]
    return found
