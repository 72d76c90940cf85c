"""Tasks that carry a series to another release."""

from __future__ import annotations

from pathlib import Path

from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, STACK, opened, put
from sparkforge.core import console
from sparkforge.core.errors import BadInput
from sparkforge.core.store import Store, write_file

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
    report: str = "",
    json: bool = False,
) -> None:
    """Take a series to another release and say what became of every patch."""
    from sparkforge.patches.rebase import carry as carrying
    from sparkforge.patches.rebase import report as shown

    accepted = frozenset(word for word in accept.replace(",", " ").split())
    if series or from_:
        if not (series and from_ and to) or component:
            raise BadInput("--series goes with --from TREE and --to TREE alone")
        console.quiet(on=json)
        reports = [carrying.of_series(Store.open(), Path(series), Path(from_), Path(to), accepted)]
        words = f"invoke rebase --series {series} --from {from_} --to {to}"
    else:
        of_stack, store = opened(stack, as_json=json)
        wanted = carrying.targets(of_stack, store, component, to)
        at = Path(clone) if clone else None
        reports = list(carrying.carry(of_stack, store, wanted, accepted, origins=origin, clone=at))
        words = f"invoke rebase --component {component} --to {to}" if component else f"invoke rebase --to {to}"
    if report:
        write_file(Path(report), shown.markdown(reports, command=words).encode())
    if json:
        put(reports)
        return
    for one in reports:
        print("\n".join([shown.summary(one), "", shown.table(one), *shown.details(one)]))
