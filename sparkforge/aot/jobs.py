"""Run as many compilers at once as cores and memory allow. One source of CUTLASS takes up to 10.3 GiB."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

GIB = 1 << 30
SPARE = GIB  # for everything else on the machine
_MEMINFO = Path("/proc/meminfo")
_LOOK_EVERY = 2.0  # seconds; memory may become free without our doing


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def available() -> int:
    """Bytes that programs can have without swapping, as the kernel estimates it (MemAvailable)."""
    for line in _MEMINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0


def taken() -> int:
    """Bytes that this process's children, theirs and so on hold now (resident size)."""
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        resident[int(stat.parent.name)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(resident[pid] for pid in ours - {os.getpid()})


@dataclass
class MemoryQueue(Generic[T]):
    """Gives each worker the first item that fits beside the memory reserved for running items.

    If nothing runs, an item is given even if it does not fit: nothing would ever free memory for it.

    Attributes:
        items: not yet given, the preferred first.
        needs: bytes that an item will take at most.
        free: bytes that are available now.
        held: bytes that running items have taken already.
        waits: called with a sentence when no item fits.
    """

    items: list[T]
    needs: Callable[[T], int]
    free: Callable[[], int] = available
    held: Callable[[], int] = taken
    waits: Callable[[str], None] = lambda _: None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _running: list[int] = field(default_factory=list)

    def take(self) -> tuple[T, int] | None:
        """The next item and the bytes reserved for it; None when none is left. Waits until one fits."""
        said = False
        with self._changed:
            while self.items:
                left = self._left() if self._running else 0
                fitting = (one for one in self.items if not self._running or self.needs(one) + SPARE <= left)
                chosen = next(fitting, None)
                if chosen is not None:
                    self.items.remove(chosen)
                    wanted = self.needs(chosen)
                    self._running.append(wanted)
                    return chosen, wanted
                if not said:
                    least = min(self.needs(one) for one in self.items)
                    self.waits(f"waiting for memory: {least / GIB:.1f} GiB wanted, {left / GIB:.1f} GiB free")
                    said = True
                self._changed.wait(_LOOK_EVERY)
            return None

    def give_back(self, wanted: int) -> None:
        """An item with so many bytes reserved has ended."""
        with self._changed:
            self._running.remove(wanted)
            self._changed.notify_all()

    def drop(self) -> None:
        """Drop the items that are left."""
        with self._changed:
            self.items.clear()
            self._changed.notify_all()

    def _left(self) -> int:
        """Free now, less what is reserved for running items and not taken yet."""
        return self.free() - max(0, sum(self._running) - self.held())


def each(queue: MemoryQueue[T], work: Callable[[T], None], at_once: int) -> None:
    """Work on every item of a queue. After a failure nothing new begins."""

    def worker() -> None:
        while (given := queue.take()) is not None:
            item, wanted = given
            try:
                work(item)
            except BaseException:
                queue.drop()
                raise
            finally:
                queue.give_back(wanted)

    with ThreadPoolExecutor(at_once) as pool:
        running = [pool.submit(worker) for _ in range(at_once)]
        try:
            for one in running:
                one.result()
        except BaseException:
            queue.drop()
            raise
