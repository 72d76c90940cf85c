"""What only a CUDA device can show: graphs, streams, other devices, memory, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from correct import Case, bits, guarded, make

Kernel = Callable[..., Any]


def _fresh(generator: torch.Generator, m: int = 4) -> Case:
    return make("device", (m, 5120, 2880), generator, "cuda", bias=True)


def _want(case: Case, kernel: Kernel) -> Any:
    _, out = guarded(case)
    kernel(case.x, case.w, case.scale, case.bias, out)
    return bits(out)


def _tensors(case: Case) -> list[torch.Tensor]:
    return [tensor for tensor in (case.x, case.w, case.scale, case.bias) if tensor is not None]


def graph(generator: torch.Generator, kernel: Kernel) -> list[str]:
    """Captured once, replayed on new inputs: each replay computes anew."""
    case = _fresh(generator)
    _, out = guarded(case)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        kernel(case.x, case.w, case.scale, case.bias, out)
    if not out.isnan().all():
        return ["the kernel ran during the capture instead of being captured"]
    for _ in range(3):
        new = _fresh(generator)
        for held, given in zip(_tensors(case), _tensors(new), strict=True):
            held.copy_(given)
        out.view(torch.int16).fill_(0x7FA5)
        captured.replay()
        torch.cuda.synchronize()
        if (bits(out) != _want(new, kernel)).any():
            return ["a replay with new inputs gives other bits than a call"]
    return []


def stream(generator: torch.Generator, kernel: Kernel) -> list[str]:
    """On a side stream it waits for what that stream does before it, and for nothing on others."""
    case = _fresh(generator)
    want = _want(case, kernel)
    late = Case("late", torch.zeros_like(case.x), case.w, case.scale, case.bias)
    _, out = guarded(late)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # noqa: SLF001  about 0.1 s on the device; torch offers no other way
        late.x.copy_(case.x)
        kernel(late.x, late.w, late.scale, late.bias, out)
    if side.query():
        return ["the call waited for the device"]
    side.synchronize()
    return [] if (bits(out) == want).all() else ["the kernel did not run on the caller's stream"]


def memory(generator: torch.Generator, kernel: Kernel) -> list[str]:
    """A call with `out` takes no memory, from torch's allocator or from CUDA."""
    case = _fresh(generator)
    _, out = guarded(case)
    kernel(case.x, case.w, case.scale, case.bias, out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.mem_get_info()[0]
    for _ in range(50):
        kernel(case.x, case.w, case.scale, case.bias, out)
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.mem_get_info()[0]
    return [] if before == after else [f"memory (allocations, bytes free) went from {before} to {after}"]


def second_device(generator: torch.Generator, kernel: Kernel) -> list[str]:
    """Tensors of a device that is not the current one; nothing to see on a machine with one."""
    if torch.cuda.device_count() == 1:
        return []
    case = _fresh(generator)
    want = _want(case, kernel)
    there = Case("there", *(tensor.to("cuda:1") for tensor in _tensors(case)))
    got = _want(there, kernel)
    wrong = [] if torch.cuda.current_device() == 0 else ["the current device was left changed"]
    return wrong + ([] if (got == want).all() else ["another result on the second device"])


def refusals(generator: torch.Generator, kernel: Kernel) -> list[str]:
    """Every wrong argument is refused by name, and the output is not touched."""
    wrong = []
    for says, error, change in _wrong_arguments():
        case = make("refused", (4, 64, 128), generator, "cuda", bias=True)
        given = {"x": case.x, "w": case.w, "scale": case.scale, "bias": case.bias, "out": guarded(case)[1]}
        before = bits(given["out"]).copy()
        original = given["out"]
        given |= change(given)
        try:
            kernel(*given.values())
        except error as refused:
            if says not in str(refused):
                wrong.append(f"for {says!r} it says: {str(refused).splitlines()[-1]}")
        else:
            wrong.append(f"not refused: {says}")
        torch.cuda.synchronize()
        if (bits(original) != before).any():
            wrong.append(f"{says}: refused, but the output was written")
    return wrong


def _wrong_arguments() -> Iterator[tuple[str, type[Exception], Callable[[dict[str, Any]], dict[str, Any]]]]:
    def misaligned(t: torch.Tensor) -> torch.Tensor:
        return torch.empty(t.numel() + 1, dtype=t.dtype, device=t.device)[1:].view(t.shape).copy_(t)

    yield "x is float16", TypeError, lambda a: {"x": a["x"].half()}
    yield "w is int8", TypeError, lambda a: {"w": a["w"].view(torch.int8)}
    yield "w_scale is float32", TypeError, lambda a: {"scale": a["scale"].float()}
    yield "out is float32", TypeError, lambda a: {"out": a["out"].float()}
    yield "bias is float32", TypeError, lambda a: {"bias": a["bias"].float()}
    yield "x has shape [512], wanted 2 dimensions", ValueError, lambda a: {"x": a["x"].flatten()}
    yield "x has 9 rows", ValueError, lambda a: {"x": a["x"].new_zeros(9, 128)}
    yield "x has 0 rows", ValueError, lambda a: {"x": a["x"][:0]}
    yield "x has K = 120", ValueError, lambda a: {"x": a["x"].new_zeros(4, 120)}
    yield "w has shape [64, 32]", ValueError, lambda a: {"w": a["w"][:, :32].contiguous()}
    yield "w_scale has shape [64, 8]", ValueError, lambda a: {"scale": a["scale"].repeat(1, 2)}
    yield "out has shape [4, 32]", ValueError, lambda a: {"out": a["out"].view(-1)[:128].view(4, 32)}
    yield "bias has shape [63], wanted [64]", ValueError, lambda a: {"bias": a["bias"][:63]}
    yield "x is not contiguous", ValueError, lambda a: {"x": a["x"].repeat(1, 2)[:, ::2]}
    yield "w is not contiguous", ValueError, lambda a: {"w": a["w"].T.contiguous().T}
    yield "x is not on a CUDA device", ValueError, lambda a: {"x": a["x"].cpu()}
    yield "w is not on a CUDA device", ValueError, lambda a: {"w": a["w"].cpu()}
    yield "x is not aligned to 16 bytes", ValueError, lambda a: {"x": misaligned(a["x"])}
    yield "w is not aligned to 16 bytes", ValueError, lambda a: {"w": misaligned(a["w"])}
    yield "out overlaps x", ValueError, lambda a: {"out": a["x"].view(-1)[64:320].view(4, 64)}


CHECKS = {
    "CUDA graph": graph,
    "caller's stream": stream,
    "no allocation": memory,
    "second device": second_device,
    "refusals": refusals,
}
