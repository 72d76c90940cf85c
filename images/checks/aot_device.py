"""A CUDA device that is not here, for code that asks what it runs on and launches nothing.

Tensors that were made on it say `cuda:0`, live in the host's memory and compute there. `torch.cuda` answers for a
device of the compute capability asked for; streams, events and graphs do nothing. Only Python is told so: compiled code
sees the CPU's tensors, which is why nothing compiled may be run on them that is meant for a device.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch

DEVICE = torch.device("cuda:0")
_MAKERS = ("empty", "zeros", "ones", "full", "tensor", "arange", "rand", "randn", "randint", "as_tensor")
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
_NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")


class Held(torch.Tensor):
    """A tensor in the host's memory that says it is on the device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it says it is."""
        return DEVICE

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """It says so."""
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        """It says not."""
        return False

    def get_device(self) -> int:
        """Number of the device."""
        return 0

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        """On the host."""
        return self.as_subclass(torch.Tensor)  # type: ignore[arg-type]


def held(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, said to be on the device."""
    return tensor.as_subclass(Held)  # type: ignore[arg-type]


class _Default:
    """Whether what names no device is made on the one that is not here."""

    on = False


@contextlib.contextmanager
def by_default() -> Iterator[None]:
    """As `with torch.device("cuda")`, in which vLLM makes a model's weights."""
    _Default.on = True
    try:
        yield
    finally:
        _Default.on = False


def _is_cuda(device: Any) -> bool:
    return device is not None and not isinstance(device, int) and torch.device(device).type == "cuda"


def _making(make: Any) -> Any:
    """A function that makes a tensor, on the device that is not here if it is asked for."""

    @functools.wraps(make)
    def making(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        device = kwargs.get("device")
        if device is None:
            made = make(*args, **kwargs)
            return held(made) if _Default.on else made
        if _is_cuda(device) or isinstance(device, int):
            return held(make(*args, **{**kwargs, "device": "cpu"}))
        return make(*args, **kwargs).as_subclass(torch.Tensor)

    return making


def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`Tensor.to`, with the device that is not here."""
    words = list(args)
    device = kwargs.pop("device", None)
    for at, word in enumerate(words):
        if isinstance(word, (str, torch.device)) or (at == 0 and type(word) is int):
            device = words.pop(at)
            break
        if isinstance(word, torch.Tensor):
            device, words[at] = word.device, word.dtype
            break
    made = _ORIGINAL_TO(self, *words, **kwargs) if words or kwargs else self
    if device is None:
        return held(made) if isinstance(self, Held) else made
    return held(made) if _is_cuda(device) else made.as_subclass(torch.Tensor)  # type: ignore[arg-type]


_ORIGINAL_TO = torch.Tensor.to


class Stream:
    """A stream on which nothing runs."""

    cuda_stream = 0
    device = DEVICE

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def synchronize(self) -> None:
        """Nothing runs."""

    wait_stream = wait_event = record_event = lambda *_, **__: None


class Event:
    """An event; every kernel takes a millisecond."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    record = synchronize = wait = lambda *_, **__: None

    def elapsed_time(self, _: Any) -> float:
        """Milliseconds."""
        return 1.0


class Generator:
    """The device's random numbers: a seed and an offset, of 64 bits each."""

    def get_state(self) -> torch.Tensor:
        """Both, in bytes."""
        return torch.zeros(16, dtype=torch.uint8)

    def set_state(self, _: torch.Tensor) -> None:
        """It is not asked for numbers."""


class Graph:
    """A graph that captures nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    replay = reset = lambda *_, **__: None


def pretend(major: int, minor: int) -> None:
    """Make torch say that there is such a device; what vLLM believes is set apart."""
    facts = types.SimpleNamespace(
        name=f"a device of compute capability {major}.{minor}",
        major=major,
        minor=minor,
        multi_processor_count=48,
        total_memory=128 << 30,
        shared_memory_per_block_optin=101376,
        L2_cache_size=24 << 20,
        warp_size=32,
        is_integrated=True,
    )

    @contextlib.contextmanager
    def nothing(*_: Any, **__: Any) -> Iterator[None]:
        yield

    cuda: Any = torch.cuda
    answers = {
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_, **__: (major, minor),
        "get_device_properties": lambda *_, **__: facts,
        "get_device_name": lambda *_, **__: facts.name,
        "current_stream": lambda *_, **__: Stream(),
        "default_stream": lambda *_, **__: Stream(),
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda *_, **__: None,
        "empty_cache": lambda: None,
        "set_device": lambda *_: None,
        "mem_get_info": lambda *_: (facts.total_memory, facts.total_memory),
        "device": nothing,
        "stream": nothing,
        "graph": nothing,
        "default_generators": (Generator(),),
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
    }
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    for name in (*_MAKERS, *_LIKE):
        setattr(torch, name, _making(getattr(torch, name)))
    tensor: Any = torch.Tensor
    for name in _NEW:
        setattr(tensor, name, _making(getattr(tensor, name)))
    tensor.to = _to
    tensor.cuda = lambda self, *_, **__: held(self)
    tensor.pin_memory = lambda self, *_, **__: self
    tensor.is_pinned = lambda *_, **__: False
