"""The task on results: what each is worth now."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, STACK, opened, put
from sparkforge.core import console


@task(
    name="list",
    default=True,
    help={"json": JSON, "gate": "end with status 1 where a result that a release needs is not fresh", "stack": STACK},
)
def list_(_: Context, json: bool = False, gate: bool = False, stack: str = "vllm-0.21") -> None:
    """Every result: what it shows, and whether its samples pass and its sources still are what the run read."""
    from sparkforge.results import proofs

    found = proofs.rows(proofs.tree_files(*opened(stack, as_json=json)))
    if json:
        put([row.plain() for row in found])
    else:
        print(console.table(proofs.HEAD, [row.cells() for row in found]))
    proofs.require(found, gate=gate)
