"""An MoE layer, the compiled runner that check_tactics.py asks, and the kernels that it starts, by name."""

from __future__ import annotations

import re
from pathlib import Path

import torch

BF16 = torch.bfloat16
EXPERTS, TOP_K, HIDDEN, INTER = 32, 4, 512, 384
ALPHA, BETA, LIMIT = 1.702, 1.0, 7.0  # gpt-oss
SWIGLU, SWIGLU_BIAS = 3, 5  # the op turns the first into the second where it gets alpha, beta and a limit
RMS = 1.0e-2  # BF16 rounding of the activation between the GEMMs, and of the output
GEMM = re.compile(r"MainloopSm90ArrayTma|MoeFCGemm|fused_moe::")
# The profiler leaves names of this length mangled, and c++filt does not take them. In the text behind the name of the main
# loop stand two tuples of three numbers, cluster and tile; a number that was there before may be a reference to it.
_NUMBER = r"(?:N\w*?(?:1C|S[0-9A-Z]*_)ILi(\d+)EEE|S[0-9A-Z]*_)"
TUPLE = re.compile(f"IJ{_NUMBER}{_NUMBER}{_NUMBER}E")


class Problem:
    """Weights and tokens of an MoE layer as gpt-oss has it, with experts that get nothing, and its output in float32."""

    def __init__(self, tokens: int, seed: int = 0) -> None:
        random = torch.Generator(device="cuda").manual_seed(1000 * seed + tokens)

        def normal(*shape: int, scale: float) -> torch.Tensor:
            return (torch.randn(*shape, generator=random, device="cuda") * scale).to(BF16)

        self.x = normal(tokens, HIDDEN, scale=1.0)
        self.fc1 = normal(EXPERTS, 2 * INTER, HIDDEN, scale=HIDDEN**-0.5)  # rows: up, then gate
        self.fc2 = normal(EXPERTS, HIDDEN, INTER, scale=INTER**-0.5)
        self.bias1 = normal(EXPERTS, 2 * INTER, scale=0.5)
        self.bias2 = normal(EXPERTS, HIDDEN, scale=0.5)
        # A quarter of the experts gets half of the tokens, another quarter none.
        weights = torch.ones(EXPERTS, device="cuda")
        weights[: EXPERTS // 4], weights[-EXPERTS // 4 :] = 4.0, 0.0
        self.experts = torch.multinomial(weights.expand(tokens, -1), TOP_K, generator=random).int()
        self.scales = torch.rand(tokens, TOP_K, generator=random, device="cuda") + 0.1
        self.alpha, self.beta, self.limit = (torch.full((EXPERTS,), v, device="cuda") for v in (ALPHA, BETA, LIMIT))
        self.want = self.reference()

    def reference(self) -> torch.Tensor:
        out = torch.zeros(self.x.shape, device="cuda")
        for expert in range(EXPERTS):
            token, slot = (self.experts == expert).nonzero(as_tuple=True)
            hidden = self.x[token].float() @ self.fc1[expert].float().T + self.bias1[expert].float()
            up, gate = hidden.chunk(2, dim=-1)
            gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
            act = (gate * torch.sigmoid(ALPHA * gate) * (up + BETA)).to(BF16).float()
            row = act @ self.fc2[expert].float().T + self.bias2[expert].float()
            out.index_add_(0, token, row * self.scales[token, slot, None])
        return out

    def error(self, got: torch.Tensor) -> float:
        off = got.float() - self.want
        return float(off.square().mean().sqrt() / self.want.square().mean().sqrt())


class Runner:
    """The compiled runner, called as core.py calls it."""

    def __init__(self, library: Path) -> None:
        import tvm_ffi

        self.runner = tvm_ffi.load_module(str(library)).init(BF16, BF16, BF16, False, False, False, False)
        self.gemm1, self.gemm2 = self.runner.get_gemm1_tactic_count(), self.runner.get_gemm2_tactic_count()

    def op(self, p: Problem, id1: int, id2: int) -> torch.Tensor:
        out = torch.full_like(p.x, float("nan"))
        self.runner.run_moe(
            out, p.x, p.experts, p.scales, p.fc1, p.bias1, p.fc2, p.bias2, [], None, p.alpha, p.beta, p.limit, True,
            1, 0, 1, 0, 1, 0, False, False, [id1, id2], False, SWIGLU,
        )  # fmt: skip
        return out

    def profiled(self, p: Problem, gemm: int, tactic: int, *, prepare: bool) -> None:
        self.runner.run_gemm_profile(
            p.x, p.fc1, p.bias1, p.fc2, p.bias2, TOP_K, 1, 0, 1, 0, 1, 0, False, False, gemm, tactic, prepare, False, SWIGLU_BIAS,
        )  # fmt: skip


class Recorder:
    """Names of the kernels between marks, from one session of the profiler."""

    def __init__(self) -> None:
        self.mark = torch.zeros(7, dtype=torch.int16, device="cuda")
        self.labels: list[tuple] = []
        self.outputs: dict[tuple, object] = {}

    def __enter__(self) -> Recorder:
        from torch.profiler import ProfilerActivity, profile

        self.session = profile(activities=[ProfilerActivity.CUDA])
        self.session.__enter__()
        return self

    def step(self, label: tuple, call) -> None:
        torch.cuda.synchronize()
        self.mark.fill_(len(self.labels) % 100)  # FillFunctor<short>: nothing else here fills int16
        torch.cuda.synchronize()
        self.labels.append(label)
        self.outputs[label] = call()
        torch.cuda.synchronize()

    def __exit__(self, *problem: object) -> None:
        torch.cuda.synchronize()
        self.session.__exit__(None, None, None)
        if problem[0] is not None:
            return
        events = [e for e in self.session.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        events.sort(key=lambda e: e.time_range.start)
        groups: list[list[str]] = []
        for event in events:
            name = event.name
            if "FillFunctor<short>" in name:
                groups.append([])
            elif groups:
                groups[-1].append(name)
        assert len(groups) == len(self.labels), f"{len(groups)} marks seen, {len(self.labels)} set"
        self.kernels = dict(zip(self.labels, groups, strict=True))

    def gemms(self, label: tuple) -> list[str]:
        return [name for name in self.kernels[label] if GEMM.search(name)]


def shape(kernel: str) -> dict:
    """What a kernel's mangled name says of it."""
    at = kernel.find("MainloopSm90")
    tuples = TUPLE.findall(kernel, at)[:2] if at >= 0 else []
    if len(tuples) < 2:
        return {"tile": "", "cluster": "", "finalize": "Scatter" in kernel}
    # M is 128 or 256; a reference for N can only be to M, and one for K (64) only to N. The same in the cluster of 1 and 2.
    (cm, cn, _), (m, n, k) = tuples
    n = n or m
    return {"tile": f"{m}x{n}x{2 * int(k or n)}", "cluster": f"{cm}x{cn or cm}", "finalize": "Scatter" in kernel}


def name_of(runner: Runner, tactic: int) -> str:
    try:
        return str(runner.runner.get_tactic_name(tactic))
    except AttributeError:
        return ""  # the pin names none
