"""Overlays of a stack's upstreams, and the other distributions on which they may be laid."""

from __future__ import annotations

from sparkforge.core.paths import IMAGES
from sparkforge.core.store import Store
from sparkforge.git.of_store import git_of
from sparkforge.inputs.recipes import Stack, Upstream
from sparkforge.overlay import differences
from sparkforge.overlay.compute import Overlay, OverlayOf, StandIn, compute
from sparkforge.patches import trees

# vLLM chooses the CPU platform if the version of the distribution `vllm` says so (vllm/platforms/__init__.py,
# `cpu_platform_plugin`), and asks for that version in many places.
_CPU_LOCAL_VERSION = "+cpu"


def stand_ins(upstream: Upstream) -> tuple[StandIn, ...]:
    """The CPU build, if the upstream has one, with the accepted files of its list of differences."""
    if upstream.cpu is None:
        return ()
    listed = IMAGES / f"{upstream.cpu.package}-differences.txt"
    accepted = differences.accepted(listed.read_text()) if listed.is_file() else {}
    return (StandIn(upstream.cpu.package, upstream.release, f"{upstream.release}{_CPU_LOCAL_VERSION}", accepted),)


def of_tree(tree: trees.Tree, upstream: Upstream) -> OverlayOf:
    """What the overlay of a tree is made from."""
    return OverlayOf(tree.name, upstream, tree.pin.tree, tree.id, stand_ins(upstream))


def overlays(store: Store, stack: Stack) -> list[Overlay]:
    """Overlay of each upstream, from the store or computed.

    Raises:
        BadInput: a patch contains a trap.
        CheckFailed: a source does not match its pin, or a patch does not apply.
    """
    return [one(store, stack, name) for name in stack.upstreams]


def one(store: Store, stack: Stack, name: str) -> Overlay:
    """Overlay of one upstream, as `overlays` has it."""
    return compute(git_of(store), store, of_tree(trees.of(store, stack, name), stack.upstreams[name]))
