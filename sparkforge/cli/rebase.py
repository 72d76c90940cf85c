"""Tasks that carry a series to another release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, STACK, opened, put
from sparkforge.core import console
from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import shown
from sparkforge.core.store import Store, write_file

if TYPE_CHECKING:
    from sparkforge.patches.rebase.move import Moved

_DEFAULT = "vllm-0.21"


@task(
    default=True,
    help={
        "component": "vllm or flashinfer; the whole stack where none is named",
        "to": "release of it; for a whole stack a release of vllm, or vllm=RELEASE,flashinfer=RELEASE",
        "stack": STACK,
        "series": "a folder with a quilt series of somebody else's, with --from and --to",
        "from": "folder or archive that this series is for; --to names another one",
        "accept": "ids of patches to drop, with commas between",
        "clone": "a clone of the upstream, to name commits instead of releases",
        "origin": "look up where the upstream side of a conflict came from",
        "write": "carry the patches in a work tree and write the new series and stack",
        "name": "name of the new stack; UPSTREAM-RELEASE where none is named",
        "continue": "go on after what stopped --write is settled in the work tree",
        "abort": "remove the work tree of --write",
        "report": "write the report there, as Markdown",
        "json": JSON,
    },
)
def carry(
    _: Context,
    component: str = "",
    to: str = "",
    stack: str = _DEFAULT,
    series: str = "",
    from_: str = "",
    accept: str = "",
    clone: str = "",
    origin: bool = True,
    write: bool = False,
    name: str = "",
    continue_: bool = False,
    abort: bool = False,
    report: str = "",
    json: bool = False,
) -> None:
    """Take a series to another release and say what became of every patch."""
    from sparkforge.patches.rebase import carry as carrying
    from sparkforge.patches.rebase import move
    from sparkforge.patches.rebase import report as reporting

    accepted = frozenset(word for word in accept.replace(",", " ").split())
    if continue_ or abort:
        _resume(component, accepted, abort=abort)
        return
    if series or from_:
        if not (series and from_ and to) or component:
            raise BadInput("--series goes with --from TREE and --to TREE alone")
        console.quiet(on=json)
        reports = [carrying.of_series(Store.open(), Path(series), Path(from_), Path(to), accepted)]
        words = f"invoke rebase --series {series} --from {from_} --to {to}"
    else:
        of_stack, store = opened(stack, as_json=json)
        wanted = carrying.targets(of_stack, store, component, to)
        if write:
            _told(move.begin(of_stack, store, wanted, accepted, name=name))
            return
        at = Path(clone) if clone else None
        reports = list(carrying.carry(of_stack, store, wanted, accepted, origins=origin, clone=at))
        words = f"invoke rebase --component {component} --to {to}" if component else f"invoke rebase --to {to}"
    if report:
        write_file(Path(report), reporting.markdown(reports, command=words).encode())
    if json:
        put(reports)
        return
    for one in reports:
        print("\n".join([reporting.summary(one), "", reporting.table(one), *reporting.details(one)]))


@task(
    help={
        "component": "vllm or flashinfer",
        "releases": "releases, with commas between; every final one after the pin where none is named",
        "stack": STACK,
        "report": "write the table there, as Markdown",
        "json": JSON,
    }
)
def matrix(
    _: Context, component: str, releases: str = "", stack: str = _DEFAULT, report: str = "", json: bool = False
) -> None:
    """A series over many releases in one table: where each patch first broke or was upstreamed."""
    from sparkforge.patches.rebase import matrix as table

    of_stack, store = opened(stack, as_json=json)
    found = table.matrix(of_stack, store, component, releases.replace(",", " ").split())
    if report:
        write_file(Path(report), table.markdown(found).encode())
    if json:
        put(found)
    else:
        print(table.markdown(found))


def _resume(component: str, accepted: frozenset[str], *, abort: bool) -> None:
    from sparkforge.patches.rebase import move

    if abort:
        console.say(f"removed {move.abort(Store.open(), component)}")
    else:
        _told(move.resume(Store.open(), component, accepted))


def _told(moved: Moved) -> None:
    """What was written, or the error that says what a person must settle."""
    if moved.written is None or moved.stack is None:
        print(moved.path)
        raise CheckFailed(
            moved.stopped,
            why=f"the patches before it are commits in {moved.path}; it lies there uncommitted",
            do="settle it there, then: invoke rebase --continue",
        )
    written = moved.written
    print(f"{shown(written.folder)}: tree {written.tree}")
    for label, names in (
        ("same bytes", written.kept),
        ("changed", written.changed),
        ("dropped", written.dropped),
    ):
        for name in names:
            print(f"  {label}: {name}")
    print(f"{shown(moved.stack)}: resolve its locks next: invoke lock --stack {moved.stack.stem}")
