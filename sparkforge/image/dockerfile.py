"""The arguments of the Dockerfile, from what was assembled."""

from __future__ import annotations

from collections.abc import Sequence

from sparkforge.core.arch import Arch
from sparkforge.core.errors import BadInput
from sparkforge.core.platforms import Platform
from sparkforge.image.base import BaseImage
from sparkforge.image.context import Context


def arguments(
    made: Context,
    on: BaseImage,
    platform: Platform,
    *,
    archs: Sequence[Arch],
    build: str,
    build_base: BaseImage | None = None,
) -> dict[str, str]:
    """Arguments of the Dockerfile.

    Args:
        made: the assembled context.
        on: base of the image.
        platform: of the image.
        archs: that the image is for; FlashInfer and torch both take a list with blanks.
        build: key of the build; names the caches of compiled code.
        build_base: the same flavor for the building machine, where that is of another platform.

    Raises:
        BadInput: a cross build without `build_base`.
    """
    host = Platform.host()
    cross = platform != host
    if cross and build_base is None:
        raise BadInput(f"a build for {platform.oci} on {host.oci} needs a base for each")
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
