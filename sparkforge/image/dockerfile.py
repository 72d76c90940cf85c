"""The build of an image: the arguments of the Dockerfile from what was assembled, and the call of an engine.

build(engine, made, on, facts, archs=..., target=..., platform=..., build_base=...) -> image id
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkforge.core.arch import Arch
from sparkforge.core.errors import BadInput
from sparkforge.core.paths import ROOT
from sparkforge.core.platforms import Platform
from sparkforge.engine.engine import Engine, Recipe
from sparkforge.image import labels
from sparkforge.image.base import Base
from sparkforge.image.context import Context

DOCKERFILE = ROOT / "Dockerfile"


def arguments(
    made: Context, on: Base, platform: Platform, *, archs: Sequence[Arch], build: str, build_base: Base | None = None
) -> dict[str, str]:
    """Arguments of the Dockerfile.

    Args:
        made: the assembled context.
        on: base of the image.
        platform: of the image.
        archs: that the image is for; FlashInfer splits its list at blanks and torch takes blanks too.
        build: key of the build; names the caches of compiled code.
        build_base: the same flavor for the building machine's platform; wanted when that is another one.

    Raises:
        BadInput: a cross build without `build_base`.
    """
    host = Platform.host()
    cross = platform != host
    if cross and build_base is None:
        raise BadInput(f"a build for {platform.oci} on {host.oci} wants a base for each")
    lay_on = build_base if cross and build_base is not None else on
    if lay_on.python != on.python:
        raise BadInput("both bases of a cross build need one Python", why=f"{lay_on.python} and {on.python}")
    return {
        "BASE": on.tag,
        "BUILD_BASE": lay_on.tag,
        "PLATFORM": platform.oci,
        "BUILD_PLATFORM": host.oci,
        "LAY": "cross" if cross else "native",
        "PYTHON": on.python,
        "WHEEL_PLATFORM": platform.uv(on.glibc),
        "TRIPLE": platform.triple,
        "BUILD_KEY": build[:12],
        "ARCHS_TORCH": " ".join(arch.torch for arch in archs),
        "ARCHS_FLASHINFER": " ".join(arch.text for arch in archs),
        **made.digests,
    }


def build(
    engine: Engine,
    made: Context,
    on: Base,
    facts: labels.ImageFacts,
    *,
    tag: str,
    archs: Sequence[Arch],
    platform: Platform,
    build_base: Base | None = None,
) -> str:
    """Build an image from an assembled context; its id.

    Raises:
        CheckFailed: the engine could not; its own lines stand above.
    """
    args = arguments(made, on, platform, archs=archs, build=facts.build, build_base=build_base)
    return engine.build(Recipe(made.path, DOCKERFILE, facts.target, tag, platform, args, labels.labels(facts)))
