"""Profiles as a table, and one of them with the evidence of its parts."""

from __future__ import annotations

import msgspec

from sparkforge.core import console
from sparkforge.serving import figures
from sparkforge.serving.load import Catalogue, together
from sparkforge.serving.profile import Profile
from sparkforge.serving.words import command


class Row(msgspec.Struct, frozen=True):
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
    predicted: figures.Figures | None


def row(known: Catalogue, profile: Profile, parts: str) -> Row:
    """A profile with some of its parts."""
    one = command(known, profile, parts)
    return Row(
        profile.name,
        profile.summary,
        profile.model,
        profile.default_of,
        len(profile.cluster.addresses) if profile.cluster else 1,
        one.on,
        one.off,
        tuple(sorted(filter(None, together(list(known.parts_of(profile).values()))))),
        profile.unproved,
        figures.figures(one),
    )


def table(rows: list[Row]) -> str:
    """All profiles; figures are predicted."""
    head = ("profile", "default of", "weights", "KV tokens", "roof", "what")
    shown = console.table(head, ((one.name, ",".join(one.default_of), *_figures(one), one.summary) for one in rows))
    return (
        f"{shown}\n\nPredicted, not measured: weights on each Spark, tokens of KV cache beside them, and what memory"
        f"\nalone allows at context {figures.CONTEXT} without speculation. More: invoke profiles --name NAME"
    )


def _figures(one: Row) -> tuple[str, str, str]:
    if one.predicted is None:
        return "", "", ""
    return f"{one.predicted.weights_gb} GB", str(one.predicted.kv_tokens), f"{one.predicted.roof}/s"


def told(known: Catalogue, one: Row) -> str:
    """One profile: each part with what it stands on and what it lacks."""
    lines = [f"{one.name}: {one.summary}", f"model {one.model}"]
    if one.predicted is not None:
        weights, tokens, roof = _figures(one)
        lines.append(
            f"predicted: {weights} of weights, room for {tokens} tokens ({one.predicted.kv_requests} of the longest"
            f" requests), at most {roof} at context {figures.CONTEXT} without speculation"
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
    return "\n".join(lines)
