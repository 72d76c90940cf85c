"""What a build changed in an image: which layers are new, and how many bytes a registry would be sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkforge.engine.engine import Layer


@dataclass(frozen=True)
class Difference:
    """Two builds of one image, layer by layer.

    Attributes:
        kept: layers that both have, from the lowest up.
        new: layers of the second build that the first has nowhere.
    """

    kept: tuple[Layer, ...]
    new: tuple[Layer, ...]

    @property
    def new_bytes(self) -> int | None:
        """Content of the new layers, uncompressed; None where the engine tells no sizes."""
        sizes = [layer.size for layer in self.new]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def difference(before: Sequence[Layer], after: Sequence[Layer]) -> Difference:
    """How `after` differs from `before`: layers are equal if their digests and those of all layers below are."""
    kept: list[Layer] = []
    for old, new in zip(before, after, strict=False):
        if old.digest != new.digest:
            break
        kept.append(new)
    known = {layer.digest for layer in before}
    return Difference(tuple(kept), tuple(layer for layer in after if layer.digest not in known))
