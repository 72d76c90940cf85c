"""Compilers at once: as many as cores and memory bear. A translation unit of CUTLASS takes up to 10.3 GiB."""

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
    """Gives work to whoever asks: the first item whose memory is free beside what running ones may still come to take.

    One item is always given, whatever it takes: waiting for memory that nobody gives back would be waiting for ever.

    Attributes:
        items: what is left, in order of preference.
        needs: bytes that an item will take at most.
        free: tells what is available now.
        held: tells what running items have taken already.
        waits: called with a sentence when memory lets nobody begin.
    """

    items: list[T]
    needs: Callable[[T], int]
    free: Callable[[], int] = available
    held: Callable[[], int] = taken
    waits: Callable[[str], None] = lambda _: None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _running: list[int] = field(default_factory=list)

    def take(self) -> tuple[T, int] | None:
        """An item and what was set aside for it; None when there is none left. Waits until one fits."""
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
        """Say that an item that took so much has ended."""
        with self._changed:
            self._running.remove(wanted)
            self._changed.notify_all()

    def drop(self) -> None:
        """Leave what is left."""
        with self._changed:
            self.items.clear()
            self._changed.notify_all()

    def _left(self) -> int:
        """Free now, less what running items were promised and have not taken yet."""
        return self.free() - max(0, sum(self._running) - self.held())


def each(queue: MemoryQueue[T], work: Callable[[T], None], at_once: int) -> None:
    """Work on every item of a queue; the first failure ends it when what runs has ended."""

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
