"""The ceilings of a run: what reading, copying and launching cost on this GPU, for the same bytes and launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from graphs import Timed, Work, timed

GIB = 1 << 30
SHAPES = ((132, 512), (264, 256), (264, 512), (528, 512))  # blocks, threads: the best counts


class Limits:
    """Kernels that only read, only copy, or do nothing."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.data = torch.randint(0, 256, (GIB,), dtype=torch.uint8, device="cuda")
        self.sink = torch.zeros(4, dtype=torch.int32, device="cuda")

    def reading(self, offset: int, size: int, shape: tuple[int, int], *, overlap: bool) -> Callable[[], None]:
        """One launch that reads `size` bytes."""

        def call() -> None:
            data, sink = ctypes.c_void_p(self.data.data_ptr() + offset), ctypes.c_void_p(self.sink.data_ptr())
            _raise(self.library.read_only(data, ctypes.c_int64(size), sink, *shape, int(overlap), _stream()))

        return call

    def read(self, name: str, sizes: list[int], *, overlap: bool, calls: int) -> Timed:
        """The fastest of SHAPES; the launches read `sizes` in turn, each another part of 1 GiB; time is per round."""
        tried = []
        for shape in SHAPES:
            offset, works = 0, []
            for _ in range(calls):
                for size in sizes:
                    if offset + size > GIB:
                        offset = 0
                    works.append(self.reading(offset, size, shape, overlap=overlap))
                    offset += -(-size // 256) * 256
            work = Work(name, f"read-only, {shape[0]} x {shape[1]}{', PDL' if overlap else ''}", 0, 0, works)
            one = timed(work)
            one.microseconds = [sample * len(sizes) for sample in one.microseconds]
            one.bytes = sum(sizes)
            tried.append(one)
        return min(tried, key=lambda one: one.median)

    def copy(self) -> Timed:
        """1 GiB from one place to another; bytes read and written both count."""
        target = torch.empty_like(self.data)

        def call() -> None:
            source = ctypes.c_void_p(self.data.data_ptr())
            size = ctypes.c_int64(GIB)
            _raise(self.library.copy(source, ctypes.c_void_p(target.data_ptr()), size, 1056, 512, _stream()))

        return timed(Work("copy", "1 GiB", 0, 2 * GIB, [call]))

    def gap(self, *, overlap: bool) -> Timed:
        """From one empty kernel to the next."""

        def call() -> None:
            _raise(self.library.empty(132, 32, int(overlap), _stream()))

        return timed(Work("empty kernel", "PDL" if overlap else "plain", 0, 0, [call] * 200))


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _raise(status: Any) -> None:
    if status:
        raise RuntimeError(f"CUDA error {status}")
