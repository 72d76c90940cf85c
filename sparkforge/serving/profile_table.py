"""Profiles for people: a table with predicted figures, and one profile with the evidence of its parts."""

from __future__ import annotations

import textwrap

import msgspec

from sparkforge.core import console
from sparkforge.serving import predict
from sparkforge.serving.load import Catalogue, together
from sparkforge.serving.profile import Profile
from sparkforge.serving.words import Command, command

CONTEXT = 2048
WORKING = 6e9
"""Bytes for activations, CUDA graphs and the CUDA context: assumed."""


class Figures(msgspec.Struct, frozen=True):
    """Predicted, on Sparks of 273 GB/s.

    Attributes:
        weights_gb: resident on each machine, with the padding of the experts' kernel.
        kv_tokens: that fit beside them.
        kv_requests: of the longest kind that fit at once.
        roof: tokens a second at context 2048, one request, no speculation, no padding.
        padding: share by which the experts' kernel pads their weights, and so what it reads of them.
    """

    weights_gb: float
    kv_tokens: int
    kv_requests: float
    roof: float
    padding: float


def figures(command: Command) -> Figures | None:
    """Figures of what a profile runs; None where its model is none that is known."""
    profile = command.profile
    shape = predict.SHAPES.get(profile.model)
    if shape is None:
        return None
    said = {group[0]: group[1] for group in command.groups if len(group) > 1}
    layers = said.get("--mxfp4-layers", "moe").split(",")
    every = "all" in layers
    kept = predict.Kept(
        qkv=every or "qkv" in layers,
        out=every or "o" in layers,
        lm_head=every or "lm_head" in layers,
        kv=1 if said.get("--kv-cache-dtype", "auto").startswith("fp8") else 2,
        machines=int(said.get("--tensor-parallel-size", "1")),
    )
    kernel = command.env.get("VLLM_MXFP4_MOE_KERNEL", "marlin")
    tokens = predict.room(shape, kept, float(said["--gpu-memory-utilization"]), kernel, WORKING)
    return Figures(
        weights_gb=round(predict.resident(shape, kept, kernel) / 1e9, 1),
        kv_tokens=int(tokens),
        kv_requests=round(tokens / int(said["--max-model-len"]), 1),
        roof=round(predict.roof(shape, kept, CONTEXT), 1),
        padding=round(predict.padded(shape, kernel) - 1, 3),
    )


class ProfileRow(msgspec.Struct, frozen=True):
    """A profile for people.

    Attributes:
        name: of it.
        summary: one line.
        model: that it serves.
        default_of: targets whose images serve it without words.
        machines: that it takes.
        on: parts that are on.
        off: the others.
        soaked_as: paths that all soaked parts took together.
        unproved: what nobody has shown of its own flags.
        predicted: figures on a Spark; None for a model that is not gpt-oss.
    """

    name: str
    summary: str
    model: str
    default_of: tuple[str, ...]
    machines: int
    on: tuple[str, ...]
    off: tuple[str, ...]
    soaked_as: tuple[str, ...]
    unproved: tuple[str, ...]
    predicted: Figures | None


def row(known: Catalogue, profile: Profile, parts: str) -> ProfileRow:
    """A profile with some of its parts."""
    one = command(known, profile, parts)
    return ProfileRow(
        profile.name,
        profile.summary,
        profile.model,
        profile.default_of,
        len(profile.cluster.addresses) if profile.cluster else 1,
        one.on,
        one.off,
        tuple(sorted(filter(None, together(list(known.parts_of(profile).values()))))),
        profile.unproved,
        figures(one),
    )


def table(rows: list[ProfileRow]) -> str:
    """All profiles; figures are predicted."""
    head = ("profile", "default of", "weights", "KV tokens", "roof", "what")
    shown = console.table(head, ((one.name, ",".join(one.default_of), *_figures(one), one.summary) for one in rows))
    return (
        f"{shown}\n\nPredicted, not measured: weights on each Spark, tokens of KV cache beside them, and what memory"
        f"\nalone allows at context {CONTEXT} without speculation. More: invoke profiles --name NAME"
    )


def _figures(one: ProfileRow) -> tuple[str, str, str]:
    if one.predicted is None:
        return "", "", ""
    return f"{one.predicted.weights_gb} GB", str(one.predicted.kv_tokens), f"{one.predicted.roof}/s"


def told(known: Catalogue, one: ProfileRow) -> str:
    """One profile: each part with what it stands on and what it lacks."""
    lines = [f"{one.name}: {one.summary}", f"model {one.model}"]
    if one.predicted is not None:
        weights, tokens, roof = _figures(one)
        lines.append(
            f"predicted: {weights} of weights, room for {tokens} tokens ({one.predicted.kv_requests} of the longest"
            f" requests), at most {roof} at context {CONTEXT} without speculation"
            f" (without the {one.predicted.padding:.1%} by which the experts' kernel pads its weights)"
        )
    for name, part in known.parts_of(known.find(one.name)).items():
        state = "on" if name in one.on else "off"
        lines += ["", f"{name} ({state}): {part.summary}" + (f"  [{', '.join(part.rows)}]" if part.rows else "")]
        if part.soak is not None:
            lines.append(f"  soaked:   {part.soak.result}: {', '.join(part.soak.checks)}")
        if part.held_back:
            lines.append(f"  off:      {part.held_back}")
        lines += [f"  shown:    {seen.result}: {'; '.join(seen.checks)}" for seen in part.shown]
        lines.append(f"  unproved: {part.unproved}")
    if one.soaked_as:
        lines += ["", f"soaked together as: {', '.join(one.soaked_as)}"]
    lines += [f"unproved: {line}" for line in one.unproved]
    return "\n".join(
        textwrap.fill(line, console.WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False) for line in lines
    )
