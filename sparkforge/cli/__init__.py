"""The words of the command line. Each task parses, calls one function of the library and prints what it gives."""

from __future__ import annotations

from invoke.collection import Collection

from sparkforge.cli import aot, backends, build, kernels, patches, project, proofs, rebase, roofline, serve


def namespace() -> Collection:
    """All tasks, as `invoke --list` shows them."""
    top = Collection()
    for module in (build, backends, project, serve, roofline):
        for name, task in Collection.from_module(module).tasks.items():
            top.add_task(task, name=name)
    top.add_collection(Collection.from_module(patches, name="patches"))
    top.add_collection(Collection.from_module(rebase, name="rebase"))
    top.add_collection(Collection.from_module(aot, name="aot"))
    top.add_collection(Collection.from_module(kernels, name="kernels"))
    top.add_collection(Collection.from_module(proofs, name="proofs"))
    return top
