"""The nodes of a captured CUDA graph, read back from the driver: kernels with the bytes of every parameter.

A kernel's parameters are what it will be started with at every replay: addresses, sizes, and by value the 128 bytes of
a TMA descriptor where it takes one. The driver is asked through ctypes, since it names the parameters of kernels of
every origin: the runtime's, Triton's, a library's.

Layouts: CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY3D_v2 and CUDA_MEMSET_NODE_PARAMS of cuda.h 13.0.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass

KINDS = {
    0: "kernel", 1: "memcpy", 2: "memset", 3: "host", 4: "graph", 5: "empty", 6: "wait", 7: "event", 8: "signal",
    9: "semaphore", 10: "alloc", 11: "free", 12: "batch", 13: "conditional",
}  # fmt: skip
TENSOR_MAP = 128  # bytes of a CUtensorMap, aligned to 64


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        kind: of KINDS.
        name: a kernel's name as compiled, else "".
        launch: grid, block and dynamic shared memory of a kernel; sizes and value of a copy or a fill.
        params: the bytes of each parameter; of a copy or a fill its addresses.
    """

    kind: str
    name: str = ""
    launch: tuple[int, ...] = ()
    params: tuple[bytes, ...] = ()

    def tactic(self) -> tuple:
        """What was chosen: the kernel and how it is started."""
        return (self.kind, self.name, self.launch, tuple(len(one) for one in self.params))


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("func", c_void_p),
        ("sizes", c_uint * 7),  # grid, block, dynamic shared memory
        ("params", POINTER(c_void_p)),
        ("extra", POINTER(c_void_p)),
        ("kern", c_void_p),
        ("context", c_void_p),
    )


class _Memset(ctypes.Structure):
    _fields_ = (
        ("dst", c_void_p),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    )


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def ask(name: str, *words) -> None:
    """Call the driver; its error is ours."""
    code = getattr(_driver(), name)(*words)
    if code:
        said = c_char_p()
        _driver().cuGetErrorName(c_int(code), byref(said))
        raise RuntimeError(f"{name}: {(said.value or b'?').decode()} ({code})")


@functools.cache
def _sizes(func: int, kern: int) -> tuple[tuple[int, int], ...]:
    """Offset and size of each parameter of a kernel."""
    found: list[tuple[int, int]] = []
    ask, who = ("cuFuncGetParamInfo", func) if func else ("cuKernelGetParamInfo", kern)
    while True:
        offset, size = c_size_t(), c_size_t()
        # Past the last one the driver says invalid value.
        if getattr(_driver(), ask)(c_void_p(who), c_size_t(len(found)), byref(offset), byref(size)):
            return tuple(found)
        found.append((offset.value, size.value))


@functools.cache
def _name(func: int, kern: int) -> str:
    said = c_char_p()
    if func:
        ask("cuFuncGetName", byref(said), c_void_p(func))
    else:
        ask("cuKernelGetName", byref(said), c_void_p(kern))
    return (said.value or b"").decode()


def _packed(extra) -> tuple[int, int]:
    """Address and size of parameters that were handed over in one buffer (CU_LAUNCH_PARAM_BUFFER_*)."""
    place = size = number = 0
    while (key := extra[number] or 0) != 0:
        if key == 1:
            place = extra[number + 1]
        elif key == 2:
            size = ctypes.cast(extra[number + 1], POINTER(c_size_t)).contents.value
        number += 2
    return place, size


def _kernel(node: int) -> Node:
    read = _Kernel()
    ask("cuGraphKernelNodeGetParams_v2", c_void_p(node), byref(read))
    func, kern = read.func or 0, read.kern or 0
    sizes = _sizes(func, kern)
    if read.params:
        params = tuple(ctypes.string_at(read.params[number], size) for number, (_, size) in enumerate(sizes))
    elif read.extra:
        place, _ = _packed(read.extra)
        params = tuple(ctypes.string_at(place + offset, size) for offset, size in sizes)
    else:
        params = ()
    return Node("kernel", _name(func, kern), tuple(read.sizes), params)


def set_params(node: int, params: tuple[bytes, ...]) -> None:
    """Give a kernel node other parameters; kernel and launch stay."""
    held = _Kernel()
    ask("cuGraphKernelNodeGetParams_v2", c_void_p(node), byref(held))
    sizes = tuple(size for _, size in _sizes(held.func or 0, held.kern or 0))
    if sizes != tuple(map(len, params)):
        raise ValueError(f"parameters of {list(map(len, params))} bytes for {list(sizes)}")
    kept = [ctypes.create_string_buffer(one, len(one)) for one in params]
    places = (c_void_p * len(kept))(*(ctypes.addressof(one) for one in kept))
    held.params, held.extra = ctypes.cast(places, POINTER(c_void_p)), None
    ask("cuGraphKernelNodeSetParams_v2", c_void_p(node), byref(held))


def _memcpy(node: int) -> Node:
    words = (ctypes.c_uint64 * 25)()
    ask("cuGraphMemcpyNodeGetParams", c_void_p(node), byref(words))
    # Host and device address of the source and of the target; the rest are offsets, pitches and sizes.
    places = (5, 6, 16, 17)
    params = tuple(int(words[at]).to_bytes(8, "little") for at in places)
    return Node("memcpy", launch=tuple(int(words[at]) for at in range(25) if at not in places), params=params)


def _memset(node: int) -> Node:
    read = _Memset()
    ask("cuGraphMemsetNodeGetParams", c_void_p(node), byref(read))
    launch = (read.pitch, read.value, read.element, read.width, read.height)
    return Node("memset", launch=launch, params=(int(read.dst or 0).to_bytes(8, "little"),))


def handles(graph: int) -> list[int]:
    """Node handles of a cudaGraph_t, in the order of their making."""
    count = c_size_t()
    ask("cuGraphGetNodes", c_void_p(graph), None, byref(count))
    found = (c_void_p * count.value)()
    if count.value:
        ask("cuGraphGetNodes", c_void_p(graph), found, byref(count))
    return [one or 0 for one in found]


def nodes(graph: int) -> list[Node]:
    """All nodes of a cudaGraph_t; those of graphs within it follow their node."""
    found: list[Node] = []
    for handle in handles(graph):
        kind = c_int()
        ask("cuGraphNodeGetType", c_void_p(handle), byref(kind))
        name = KINDS.get(kind.value, str(kind.value))
        if name == "kernel":
            found.append(_kernel(handle))
        elif name == "memcpy":
            found.append(_memcpy(handle))
        elif name == "memset":
            found.append(_memset(handle))
        else:
            found.append(Node(name))
            if name == "graph":
                child = c_void_p()
                ask("cuGraphChildGraphNodeGetGraph", c_void_p(handle), byref(child))
                found += nodes(child.value or 0)
    return found


def words(param: bytes) -> list[tuple[int, int]]:
    """Offset and value of each aligned word of 8 bytes in a parameter: where an address can stand."""
    return [(at, int.from_bytes(param[at : at + 8], "little")) for at in range(0, len(param) - 7, 8)]


def range_of(address: int) -> tuple[int, int] | None:
    """Start and size of the device allocation that holds an address; None where none does."""
    base, size = ctypes.c_uint64(), c_size_t()
    code = _driver().cuMemGetAddressRange_v2(byref(base), byref(size), ctypes.c_uint64(address))
    return None if code else (base.value, size.value)
