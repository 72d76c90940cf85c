"""The options of one build."""

from __future__ import annotations

from typing import Annotated, get_args, get_type_hints

import msgspec

from sparkforge.aot.selection import AotChoice
from sparkforge.core.arch import SM12X, Arch, parse_archs
from sparkforge.core.console import warn
from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.platforms import Platform
from sparkforge.image.base import Flavor
from sparkforge.image.labels import tag as usual_tag
from sparkforge.inputs.recipes import Stack, Target


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One build: the options of `invoke build`, typed.

    Attributes:
        archs: architectures that kernels are compiled for.
        platform: of the image.
        tag: name of the image.
        target: serve, or cpu for a machine without a GPU.
        base: flavor of the base.
        engine: docker, buildah or auto.
        locked: refuse whatever is not pinned or not recorded.
        dry: print the plan only.
        aot: which of FlashInfer's modules are compiled ahead of time.
        jobs: most compilers at once for them; 0 is one a core.
    """

    archs: tuple[Arch, ...]
    platform: Platform
    tag: str
    target: Target = "serve"
    base: Flavor = "auto"
    engine: str = "auto"
    locked: bool = False
    dry: bool = False
    aot: AotChoice = "needed"
    jobs: Annotated[int, msgspec.Meta(ge=0)] = 0


def parse(
    stack: Stack, *, arch: str = "12.1f", platform: str = "", tag: str = "", **options: str | bool | int
) -> Request:
    """A request from the words of the command line.

    Args:
        stack: that is built.
        arch: architectures, such as `12.1f,9.0`.
        platform: of the image; this machine's where it is empty.
        tag: name of the image; the usual one where it is empty.
        options: the other fields of `Request`, by name.

    Raises:
        BadInput: an option has a value that it cannot have; names the choices.
        CheckFailed: `locked`, and the stack was not verified for an architecture.
    """
    archs, where = parse_archs(arch), Platform.parse(platform) if platform else Platform.host()
    try:
        asked = msgspec.convert({"archs": archs, "platform": where, "tag": tag, **options}, Request)
    except msgspec.ValidationError as bad:
        name = str(bad).partition("$.")[2].rstrip("`")
        choices = get_args(get_type_hints(Request).get(name))
        why = f"choices: {', '.join(choices)}" if choices else str(bad)
        raise BadInput(f"--{name} {options.get(name)} is not possible", why=why, do="invoke --help build") from bad
    _verified(stack, asked)
    return msgspec.structs.replace(asked, tag=tag or usual_tag(stack.name, asked.target, where, archs))


def _verified(stack: Stack, asked: Request) -> None:
    for one in asked.archs:
        if one.text not in stack.archs:
            said = f"{stack.name} was not verified for {one.text}, only for {', '.join(stack.archs)}"
            if asked.locked:
                raise CheckFailed(said, do="build without --locked")
            warn(said)
        if one.major == SM12X and not one.suffix:
            warn(f"{one.text} without a letter has no block-scaled MMA: {one.text}f is the family target")
