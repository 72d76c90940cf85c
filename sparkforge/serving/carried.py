"""profiles.json of an image: its profiles in a form that the entrypoint reads without YAML and types."""

from __future__ import annotations

import json
from typing import Any

from sparkforge.aot.selection import PartModules
from sparkforge.inputs.recipes import Target
from sparkforge.serving.load import Catalogue, catalogue
from sparkforge.serving.profile import Profile
from sparkforge.serving.words import command, groups_of

FORMAT = 1


def of_image(stack: str, target: Target, known: Catalogue | None = None) -> dict[str, Any]:
    """Content of /opt/sparkforge/profiles.json: the profiles of a stack for a target, and which is the default.

    Words are grouped, a flag with its values, so that a user's flag can replace a profile's. `env` goes to every
    command: it names the kernels of the default profile's soaked parts.

    Raises:
        BadInput: a profile is not valid.
    """
    known = known or catalogue()
    of_it = [one for one in known.profiles.values() if one.stack == stack and target in one.targets]
    default = next((one for one in of_it if target in one.default_of), None)
    return {
        "format": FORMAT,
        "default": default.name if default else None,
        "env": _kernels(known, default) if default else {},
        "profiles": {one.name: _said(known, one) for one in of_it},
    }


def text(stack: str, target: Target, known: Catalogue | None = None) -> str:
    """The file itself."""
    return json.dumps(of_image(stack, target, known), indent=1) + "\n"


def modules(known: Catalogue | None = None) -> tuple[PartModules, ...]:
    """FlashInfer's modules that each part needs, for a build that compiles them ahead of time."""
    parts = (known or catalogue()).parts
    return tuple(PartModules(name, part.on, part.modules) for name, part in parts.items() if part.modules)


def _kernels(known: Catalogue, profile: Profile) -> dict[str, str]:
    parts = (part for part in known.parts_of(profile).values() if part.on)
    return {name: value for part in parts for name, value in part.env.items()}


def _said(known: Catalogue, profile: Profile) -> dict[str, Any]:
    parts = known.parts_of(profile)
    bare = command(known, profile, bare=True)
    return {
        "summary": profile.summary,
        "model": profile.model,
        "machines": len(profile.cluster.addresses) if profile.cluster else 1,
        "words": bare.groups,
        "env": bare.env,
        "parts": {
            name: {"on": part.on, "words": groups_of(part.flags), "env": part.env} for name, part in parts.items()
        },
    }
