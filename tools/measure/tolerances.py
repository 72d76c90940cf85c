"""How far faults move a gpt-oss, and how far rounding does: what the limits of tools/gpu/vllm/rules.py stand between.

    ENVIRONMENT/bin/python tools/measure/tolerances.py --json results/vllm/tolerances.json [--work FOLDER]

ENVIRONMENT has torch and transformers; no GPU. The model is checkpoint.py's tiny one (4 layers, hidden 512, random
weights), by transformers: float32 is the reference; BF16 stands for an engine, with its KV cache in BF16, in FP8, or in
FP8 with the queries rounded to FP8 too, as Triton does. Each fault is planted in each layer alone.

Written, in spreads (standard deviations of a place's logits): the rms by which logits moved, and the regret of the
engine's choice by the reference, largest and mean. And on the fitted model (sharp.py), for several margins: tokens that
change, and the rms by which the lead of the wanted token moves.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools/gpu/vllm")]

from sparkforge.results.provenance import Run  # noqa: E402  the path comes first

RUN = Run(__file__)

import checkpoint  # noqa: E402
import sharp  # noqa: E402
import torch  # noqa: E402
from plan import Prompts  # noqa: E402
from transformers import GptOssForCausalLM  # noqa: E402
from transformers.models.gpt_oss import modeling_gpt_oss as modeling  # noqa: E402

VOCAB = 2048
FP8 = torch.float8_e4m3fn
KINDS = {"BF16": (False, False), "FP8": (False, True), "FP8 and queries": (True, True)}
# Passes that lm_head is fitted to, and the margin of the fit in spreads.
FITS = (
    (("BF16",), 0.75),
    (("BF16",), 1.0),
    (("BF16",), 2.0),
    (("BF16", "FP8 and queries"), 1.5),
    (("BF16", "FP8 and queries"), 2.0),
)


def roll(parameter: torch.Tensor) -> torch.Tensor:
    """By one in the first dimension: sinks by a head, experts by one."""
    return parameter.roll(1, dims=0)


def inputs_shifted(weight: torch.Tensor) -> torch.Tensor:
    """[N, K] by 16 of its inputs, as Marlin's packed rows are."""
    return weight.roll(16, dims=1)


def slice_doubled(weight: torch.Tensor) -> torch.Tensor:
    """32 of the columns."""
    found = weight.clone()
    found[:, 64:96] *= 2
    return found


def negated(experts: torch.Tensor) -> torch.Tensor:
    """One expert of eight."""
    found = experts.clone()
    found[3] *= -1
    return found


def exchanged(experts: torch.Tensor) -> torch.Tensor:
    """The first two."""
    return experts[[1, 0, *range(2, len(experts))]]


# Name: the parameters of a layer, and what becomes of them.
FAULTS: dict[str, tuple[tuple[str, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "attention closed by its sinks": (("self_attn.sinks",), lambda was: torch.full_like(was, 30.0)),
    "every expert another's": (("mlp.experts.down_proj",), roll),
    "qkv shifted": (tuple(f"self_attn.{one}_proj.weight" for one in "qkv"), inputs_shifted),
    "o shifted": (("self_attn.o_proj.weight",), inputs_shifted),
    "sinks gone": (("self_attn.sinks",), lambda was: torch.full_like(was, -30.0)),
    "sinks of another head": (("self_attn.sinks",), roll),
    "two experts exchanged": (("mlp.experts.down_proj",), exchanged),
    "one expert negated": (("mlp.experts.down_proj",), negated),
    "32 columns of o doubled": (("self_attn.o_proj.weight",), slice_doubled),
}


@contextlib.contextmanager
def planted(model: Any, layer: int, fault: str) -> Iterator[None]:
    """The model with one fault in one layer; as it was afterwards."""
    names, change = FAULTS[fault]
    parameters = [model.model.layers[layer].get_parameter(name) for name in names]
    before = [one.detach().clone() for one in parameters]
    try:
        for one, was in zip(parameters, before, strict=True):
            one.data.copy_(change(was))
        yield
    finally:
        for one, was in zip(parameters, before, strict=True):
            one.data.copy_(was)


def rounding(kind: str) -> None:
    """From here on, attention reads keys and values, and queries, through FP8 or not."""
    queries, cache = KINDS[kind]

    def through(tensor: torch.Tensor, on: bool) -> torch.Tensor:
        return tensor.float().clamp(-448, 448).to(FP8).to(tensor.dtype) if on else tensor

    def attend(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **more: Any) -> Any:
        return _ATTEND(module, through(q, queries), through(k, cache), through(v, cache), *args, **more)

    modeling.eager_attention_forward = attend


_ATTEND = modeling.eager_attention_forward


@torch.inference_mode()
def rows(model: Any, sequences: list[dict], *, hidden: bool = False) -> torch.Tensor:
    """Logits, or what they are computed from, in float32, at each place of each reply."""
    found = []
    for one in sequences:
        whole = torch.tensor([one["prompt"] + one["reply"]])
        states = model.model(input_ids=whole).last_hidden_state[0, len(one["prompt"]) - 1 : -1]
        found.append((states if hidden else model.lm_head(states)).float())
    return torch.cat(found)


def moved(mine: torch.Tensor, reference: torch.Tensor) -> dict[str, float]:
    """In spreads: rms of the logits that moved, and the regret of the choices by the reference."""
    spread = reference.std(dim=1, keepdim=True)
    regret = (reference.max(dim=1).values - reference.gather(1, mine.argmax(dim=1, keepdim=True)).squeeze(1)) / spread[
        :, 0
    ]
    rms = ((mine - reference) / spread).square().mean().sqrt()
    return {key: round(float(value), 4) for key, value in
            (("rms", rms), ("largest", regret.max()), ("mean", regret.mean()))}  # fmt: skip


def told(
    hidden: torch.Tensor, sound: torch.Tensor, head: torch.Tensor, spread: float, wanted: torch.Tensor
) -> dict[str, float]:
    """On a fitted lm_head: tokens that change, least lead, and the rms by which leads move."""
    now, before = (sharp.margins(one @ head.T, wanted) / spread for one in (hidden, sound))
    kept = now > 0
    return {
        "changed": int((~kept).sum()),
        "least": round(float(now.min()), 3),
        "lead rms": round(float((now - before).square().mean().sqrt()), 4),
    }


def main() -> None:
    """Measure, and write what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="folder for the checkpoint; a temporary one by default")
    said = parser.parse_args()
    work = said.work or Path(tempfile.mkdtemp(prefix="tolerances-"))
    if not (work / "twin").is_dir():
        checkpoint.write("tiny", work, "cpu")
    prompts = Prompts(VOCAB)
    probe = prompts.probe
    fitted = prompts.sharp("main", "mixed")
    wanted = torch.tensor([token for one in fitted for token in one["reply"]])
    exact = GptOssForCausalLM.from_pretrained(work / "twin", dtype=torch.float32, attn_implementation="eager").eval()
    engine = GptOssForCausalLM.from_pretrained(work / "twin", dtype=torch.bfloat16, attn_implementation="eager").eval()
    rounding("BF16")
    reference = rows(exact, probe)
    passes = {}
    for kind in KINDS:
        rounding(kind)
        passes[kind] = rows(engine, fitted, hidden=True)
    generator = torch.Generator().manual_seed(20261121)
    start = (
        torch.randn(VOCAB, passes["BF16"].shape[1], generator=generator) * sharp.SPREAD / passes["BF16"].shape[1] ** 0.5
    )
    heads = {}
    for kinds, margin in FITS:
        found_head = sharp.fit(torch.cat([passes[kind] for kind in kinds]), wanted.repeat(len(kinds)), start, margin)
        heads[" and ".join(kinds), margin] = found_head
        print(kinds, margin, found_head[1], flush=True)
    found: dict[str, Any] = {"logits": {}, "fitted": {}}
    layers = len(engine.model.layers)
    for kind in KINDS:
        rounding(kind)
        cases: list[tuple[str, int]] = [("none", 0)] + [(fault, layer) for fault in FAULTS for layer in range(layers)]
        for fault, layer in cases:
            with planted(engine, layer, fault) if fault != "none" else contextlib.nullcontext():
                of_probe = moved(rows(engine, probe), reference)
                hidden = rows(engine, fitted, hidden=True)
            found["logits"].setdefault(kind, {}).setdefault(fault, []).append(of_probe)
            for (name, margin), (head, fit) in heads.items():
                row = told(hidden, passes[kind], head, fit["spread"], wanted)
                found["fitted"].setdefault(f"fit of {name}, margin {margin}", {}).setdefault(kind, {}).setdefault(
                    fault, []
                ).append(row)
            print(kind, fault, layer, of_probe, flush=True)
    RUN.write(said.json, {
        "check": "tolerances", "model": "checkpoint.py tiny: 4 layers, hidden 512, 8 experts, random weights",
        "places": {"probe": len(reference), "fitted": len(wanted)}, "faults": list(FAULTS), **found,
    })  # fmt: skip


if __name__ == "__main__":
    main()
