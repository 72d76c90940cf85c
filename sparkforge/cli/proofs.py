"""Tasks on results that prove something."""

from __future__ import annotations

from pathlib import Path

from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, STACK, opened, put
from sparkforge.core import console
from sparkforge.core.errors import CheckFailed


@task(name="list", default=True, help={"json": JSON, "stack": STACK})
def list_(_: Context, json: bool = False, stack: str = "vllm-0.21") -> None:
    """Every long proof: what it shows, where it ran, and whether its sources still are what it read."""
    from sparkforge.results import verbs
    from sparkforge.results.proofs import State

    of_stack, _store = opened(stack, as_json=json)
    found = verbs.every(of_stack)
    if json:
        put([row.plain() for row in found])
    else:
        print(verbs.table(of_stack))
    wrong = [row.result for row in found if row.state is not State.FRESH]
    if wrong:
        raise CheckFailed(f"not proved now: {', '.join(wrong)}", do="repeat them, then invoke proofs.stamp RESULT")


@task(
    positional=["result"],
    iterable=["tree"],
    help={
        "result": "result file that results/proofs.yaml lists",
        "tree": "UPSTREAM=ID of a tree that was read, where the result does not say it; may be given twice",
        "commit": "commit of the checkout whose files were read; as they stand where none is named",
        "stack": STACK,
    },
)
def stamp(_: Context, result: str, tree: list[str], commit: str = "", stack: str = "vllm-0.21") -> None:
    """Write into a result what it read, right after it was made."""
    from sparkforge.results import verbs

    made = verbs.stamp(*opened(stack), Path(result), trees=tree, commit=commit)
    console.say(f"{result}: {len(made.reads)} sources")
