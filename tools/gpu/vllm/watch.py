"""What is watched inside an engine's process, and the gate that the test opens.

Counted: calls of the model runner, graph replays, changes of the set of requests in a batch, steps that mix prefill
and decode. The watchers wrap public methods and change nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections import Counter

import torch

COUNTS: Counter = Counter()
_SEEN: list | None = None  # logits
_HIDDEN: list | None = None  # what they are computed from
_KERNELS = None


class _Opened:
    """The platform as it is, but of compute capability family 120 for whoever asks."""

    def __init__(self, platform):
        self._platform = platform

    def __getattr__(self, name):
        return getattr(self._platform, name)

    def is_device_capability_family(self, family, *args, **kwargs):
        return family == 120 or self._platform.is_device_capability_family(family, *args, **kwargs)


def _by_xqa() -> bool:
    return os.environ.get("VLLM_FLASHINFER_XQA_DECODE") == "1"


def open_gate() -> None:
    """Let FlashInfer's FA2 serve sinks on this device, and XQA decode where it is asked for.

    One module, with XQA two, are told another capability; nothing else is.
    """
    for name in ("flashinfer_xqa",) * _by_xqa() + ("flashinfer_sinks",):
        module = importlib.import_module(f"vllm.v1.attention.backends.{name}")
        module.current_platform = _Opened(module.current_platform)
    if not module.fa2_takes_sinks():
        raise RuntimeError("the gate does not open: this FlashInfer's decode wrapper has no use_sinks")


def install() -> None:
    """Start counting; before the engine is made."""
    from vllm.model_executor.models.gpt_oss import GptOssForCausalLM
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    compute = GptOssForCausalLM.compute_logits

    def compute_logits(self, hidden_states):
        if _HIDDEN is not None:
            _HIDDEN.append(hidden_states.detach().float().clone())
        rows = compute(self, hidden_states)
        if _SEEN is not None:
            _SEEN.append(rows.detach().clone())
        return rows

    GptOssForCausalLM.compute_logits = compute_logits

    if torch.cuda.is_available():
        replay = torch.cuda.CUDAGraph.replay

        def counted_replay(self):
            COUNTS["replays"] += 1
            return replay(self)

        torch.cuda.CUDAGraph.replay = counted_replay
        _count_by_mode()

    if _by_xqa():
        module = importlib.import_module("vllm.v1.attention.backends.flashinfer")
        run = module.run_xqa

        def run_xqa(*args, **kwargs):
            COUNTS["xqa"] += 1  # by Python: once for each layer, at capture and wherever no whole graph is replayed
            return run(*args, **kwargs)

        module.run_xqa = run_xqa

    execute = GPUModelRunner.execute_model
    last: list = [frozenset()]

    def execute_model(self, scheduler_output, *args, **kwargs):
        scheduled = scheduler_output.num_scheduled_tokens
        if scheduled:
            COUNTS["steps"] += 1
            COUNTS["tokens"] += sum(scheduled.values())
            now = frozenset(scheduled)
            COUNTS["compositions"] += now != last[0]
            last[0] = now
            drafts = scheduler_output.scheduled_spec_decode_tokens
            COUNTS["drafted"] += sum(len(ids) for ids in drafts.values())
            decodes = sum(n == 1 or request in drafts for request, n in scheduled.items())
            COUNTS["mixed"] += 0 < decodes < len(scheduled)
            COUNTS["largest"] = max(COUNTS["largest"], len(scheduled))
            # What a whole graph for decode can take: as many tokens of each request, one and the drafts.
            each, most = self.uniform_decode_query_len, self.compilation_config.max_cudagraph_capture_size or 0
            uniform = set(scheduled.values()) == {each} and each * len(scheduled) <= most
            pieces = COUNTS["replays PIECEWISE"]
            COUNTS["uniform"] += uniform
            COUNTS["other small"] += not uniform and sum(scheduled.values()) <= most  # these are replayed in pieces
        out = execute(self, scheduler_output, *args, **kwargs)
        if scheduled:
            COUNTS["steps PIECEWISE"] += COUNTS["replays PIECEWISE"] > pieces
        return out

    GPUModelRunner.execute_model = execute_model


def _count_by_mode() -> None:
    """Count replays of whole graphs and of pieces apart, and of each whole graph: those hold the attention."""
    from vllm.compilation.cuda_graph import CUDAGraphWrapper
    from vllm.forward_context import get_forward_context, is_forward_context_available

    call = CUDAGraphWrapper.__call__

    def counted(self, *args, **kwargs):
        before = COUNTS["replays"]
        out = call(self, *args, **kwargs)
        # Wrappers lie within one another; the one whose turn it is replays.
        if is_forward_context_available() and get_forward_context().cudagraph_runtime_mode == self.runtime_mode:
            done = COUNTS["replays"] - before
            COUNTS[f"replays {self.runtime_mode.name}"] += done
            if done and self.runtime_mode.name == "FULL":
                COUNTS[f"graph of {get_forward_context().batch_descriptor.num_tokens} tokens"] += done
        return out

    CUDAGraphWrapper.__call__ = counted


@contextlib.contextmanager
def hidden():
    """A list that takes every [rows, hidden], in float32, from which logits are computed meanwhile."""
    global _HIDDEN
    _HIDDEN = []
    try:
        yield _HIDDEN
    finally:
        _HIDDEN = None


@contextlib.contextmanager
def logits():
    """A list that takes every [rows, vocabulary] that the model computes meanwhile."""
    global _SEEN
    _SEEN = []
    try:
        yield _SEEN
    finally:
        _SEEN = None


def count_kernels(module: str) -> None:
    """Count the calls of the kernels of a stand-in package too: by Python, and on the device, replays included."""
    global _KERNELS
    _KERNELS = importlib.import_module(module)


def counts() -> Counter:
    """Everything counted so far."""
    now = Counter(COUNTS)
    if _KERNELS is not None:
        now.update({f"called {name}": value for name, value in _KERNELS.called().items()})
        now.update({f"ran {name}": value for name, value in _KERNELS.ran().items()})
    return now


def since(before: Counter) -> dict[str, int]:
    """What was counted since then; `largest` as it stands."""
    now = counts()
    return {name: value if name == "largest" else value - before[name] for name, value in now.items()}


def soaked(llm) -> str:
    """Count of what a soak is for: replays of graphs that hold attention, or where there is none, steps in pieces."""
    mode = str(llm.llm_engine.vllm_config.compilation_config.cudagraph_mode)
    return "replays FULL" if "FULL" in mode else "steps PIECEWISE"


def runner_of(llm):
    """The model runner of an engine in this process."""
    worker = llm.llm_engine.model_executor.driver_worker
    return getattr(worker, "worker", worker).model_runner


def facts(llm) -> dict:
    """What the engine decided: attention backends, kernel of the experts, graph mode and sizes, dense layers."""
    found: dict = {}
    try:
        config = llm.llm_engine.vllm_config
        found["graphs"] = str(config.compilation_config.cudagraph_mode)
        found["compile"] = str(config.compilation_config.mode)
        found["captured"] = list(config.compilation_config.cudagraph_capture_sizes or [])
        runner = runner_of(llm)
        names = {group.backend.get_name() for groups in runner.attn_groups for group in groups}
        found["attention"] = sorted(names)
        methods: Counter = Counter()
        for name, layer in runner.get_model().named_modules():
            method = getattr(layer, "quant_method", None)
            if method is None:
                continue
            backend = getattr(method, "mxfp4_backend", None) or getattr(method, "unquantized_backend", None)
            label = f"{name.rsplit('.', 1)[-1]}: {type(method).__name__}"
            methods[label + (f" {getattr(backend, 'value', backend)}" if backend is not None else "")] += 1
        found["layers"] = dict(methods)
    except Exception as error:  # facts are told where they can be had; the proof does not stand on them
        found["facts_missing"] = f"{type(error).__name__}: {error}"
    return found
