"""What one build is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from sparkforge.core.arch import SM12X, Arch, parse_archs
from sparkforge.core.console import warn
from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.platforms import Platform
from sparkforge.image.base import Flavor
from sparkforge.image.labels import tag
from sparkforge.inputs.recipes import Stack, Target

_TARGETS: tuple[Target, ...] = ("serve", "cpu")
_FLAVORS: tuple[Flavor, ...] = ("auto", "ngc", "bootstrap")


@dataclass(frozen=True)
class Request:
    """One build.

    Attributes:
        archs: architectures that kernels are compiled for.
        target: serve, or cpu for a machine without a GPU.
        platform: of the image.
        base: flavor of the base.
        engine: docker, buildah or auto.
        locked: refuse whatever is not pinned or not recorded.
        dry: print the plan only.
        tag: name of the image.
        aot: whether FlashInfer's modules are compiled ahead of time.
        jobs: most compilers at once for them; 0 is one a core.
    """

    archs: tuple[Arch, ...]
    target: Target
    platform: Platform
    base: Flavor
    engine: str
    locked: bool
    dry: bool
    tag: str
    aot: bool = True
    jobs: int = 0


def parse(
    stack: Stack,
    *,
    arch: str = "12.1f",
    target: str = "serve",
    platform: str = "",
    base: str = "auto",
    engine: str = "auto",
    locked: bool = False,
    dry: bool = False,
    name: str = "",
    aot: bool = True,
    jobs: int = 0,
) -> Request:
    """A request from words.

    Raises:
        BadInput: a word is not one that we know.
        CheckFailed: `locked`, and the stack was not verified for an architecture.
    """
    archs = parse_archs(arch)
    of_target = next((known for known in _TARGETS if known == target), None)
    if of_target is None:
        raise BadInput(f"there is no target {target!r}", why=f"targets: {', '.join(_TARGETS)}", do="--target serve")
    of_base = next((known for known in _FLAVORS if known == base), None)
    if of_base is None:
        raise BadInput(f"there is no base {base!r}", why=f"bases: {', '.join(_FLAVORS)}", do="--base auto")
    for one in archs:
        if one.text not in stack.archs:
            said = f"{stack.name} was not verified for {one.text}, only for {', '.join(stack.archs)}"
            if locked:
                raise CheckFailed(said, do="build without --locked")
            warn(said)
        if one.major == SM12X and not one.suffix:
            warn(f"{one.text} without a letter has no block-scaled MMA: {one.text}f is the family target")
    where = Platform.parse(platform) if platform else Platform.host()
    if jobs < 0:
        raise BadInput(f"--jobs {jobs} is no number of compilers", do="--jobs 2, or nothing for one a core")
    return Request(
        archs,
        of_target,
        where,
        of_base,
        engine,
        locked,
        dry,
        name or tag(stack.name, of_target, where, archs),
        aot,
        jobs,
    )
