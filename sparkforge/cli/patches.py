"""Tasks on patch series."""

from __future__ import annotations

from pathlib import Path

from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, STACK, opened, put
from sparkforge.core import console
from sparkforge.core.errors import BadInput, CheckFailed

_UPSTREAM = "vllm or flashinfer; by default all"
_PATH = "the work tree; by default build/edit/UPSTREAM"


@task(
    name="list", help={"upstream": _UPSTREAM, "only": "id of one patch, to see all of it", "json": JSON, "stack": STACK}
)
def list_(_: Context, upstream: str = "", only: str = "", json: bool = False, stack: str = "vllm-0.21") -> None:
    """List the patches; --only shows one with its files, its tests, and when it can be dropped."""
    from sparkforge.patches import place
    from sparkforge.patches.series import load

    at = place.places(*opened(stack, as_json=json), names=(upstream,) if upstream else ())
    mails = [(one.name, mail) for one in at for mail in load(one.folder).mails(one.git)]
    rows = [mail.facts(name) for name, mail in mails if only in {"", mail.id}]
    if not rows:
        raise BadInput(f"there is no patch {only!r}", do="invoke patches.list")
    if json:
        put(rows)
    elif only:
        said = ((name.replace("_", " "), value) for row in rows for name, value in row.items())
        print(console.table(("", ""), [(n, "\n".join(v) if isinstance(v, tuple) else v) for n, v in said]))
    else:
        cells = [
            (row["id"], row["title"], row["upstream_status"].partition(" ")[0], f"+{row['added']} -{row['removed']}")
            for row in rows
        ]
        print(console.table(("id", "title", "status", "lines"), cells))
        console.say("\nMore on one of them: invoke patches.list --only ID")


@task(help={"upstream": _UPSTREAM, "json": JSON, "stack": STACK})
def check(_: Context, upstream: str = "", json: bool = False, stack: str = "vllm-0.21") -> None:
    """Check everything that can be wrong with the series without running it."""
    from sparkforge.patches import place
    from sparkforge.patches.check import check as checked

    of_stack, store = opened(stack, as_json=json)
    asked = place.places(of_stack, store, (upstream,) if upstream else ())
    reports = checked(asked, beside=place.places(of_stack, store))
    if json:
        put(reports)
    for report in reports:
        console.say(f"{report.upstream}: {report.patches} patches, tree {report.tree or 'not reached'}")
        for fault in report.faults:
            do = f"\n    do:  {fault.do}" if fault.do else ""
            console.say(f"  {fault.patch}: {fault.what}\n    why: {fault.why}{do}")
    wrong = sum(len(report.faults) for report in reports)
    if wrong:
        do = "invoke patches.edit UPSTREAM, then invoke patches.export UPSTREAM"
        raise CheckFailed(f"{wrong} faults in the series", do=do)


@task(positional=["upstream"], help={"upstream": "vllm or flashinfer", "path": _PATH, "stack": STACK})
def edit(_: Context, upstream: str, path: str = "", stack: str = "vllm-0.21") -> None:
    """Make a work tree of the pin with one commit a patch."""
    from sparkforge.patches import place
    from sparkforge.patches.edit import edit as make

    made = make(place.place(*opened(stack), name=upstream), Path(path) if path else None)
    for patch in made.waiting:
        console.warn(f"{patch.name} does not apply and is not in the work tree")
    print(made.path)
    console.say("edit and commit there with plain git, then: invoke patches.export " + upstream)


@task(
    positional=["upstream"],
    help={
        "upstream": "vllm or flashinfer",
        "path": _PATH,
        "allow-loss": "let the series lose patches, files and hunks",
        "refresh": "rewrite untouched patches too",
        "stack": STACK,
    },
)
def export(
    _: Context,
    upstream: str,
    path: str = "",
    allow_loss: bool = False,
    refresh: bool = False,
    stack: str = "vllm-0.21",
) -> None:
    """Write a work tree's commits back as the series, in canonical bytes."""
    from sparkforge.patches import place
    from sparkforge.patches.export import export as write

    done = write(
        place.place(*opened(stack), name=upstream), Path(path) if path else None, allow_loss=allow_loss, refresh=refresh
    )
    for label, names in (("written", done.written), ("removed", done.removed), ("lost", done.lost)):
        for name in names:
            console.say(f"{label}: {name}")
    console.say(f"{len(done.kept)} patches kept their bytes; tree {done.tree}")


@task(
    positional=["upstream"],
    help={
        "upstream": "vllm or flashinfer",
        "id": "such as V-13",
        "title": "`area: what changes`",
        "path": _PATH,
        "stack": STACK,
    },
)
def new(_: Context, upstream: str, id: str, title: str, path: str = "", stack: str = "vllm-0.21") -> None:  # noqa: A002  the word of the command line
    """Commit what is uncommitted in a work tree as a new patch, with a message to fill in."""
    from sparkforge.patches import place
    from sparkforge.patches.edit import new as begin

    put(begin(place.place(*opened(stack), name=upstream), feature=id, title=title, path=Path(path) if path else None))


@task(
    help={
        "only": "id or file name of one patch",
        "upstream": _UPSTREAM,
        "jobs": "tests at a time; each takes a core and about 3 GB",
        "json": JSON,
        "stack": STACK,
    }
)
def prove(
    _: Context, only: str = "", upstream: str = "", jobs: int = 1, json: bool = False, stack: str = "vllm-0.21"
) -> None:
    """Prove that each patch's intent test fails by assertion without the patch, and passes with it."""
    from sparkforge.environments import cuda, patched, venv
    from sparkforge.environments.prove import prove as proofs
    from sparkforge.patches import place
    from sparkforge.patches.series import load

    of_stack, store = opened(stack, as_json=json)
    places = place.places(of_stack, store)
    wanted = [only] if only else []
    if upstream and not only:
        wanted = [mail.id for at in places if at.name == upstream for mail in load(at.folder).mails(at.git)]
    python = venv.ensure(store, of_stack).python
    with patched.default(store, of_stack.upstreams, places, python, cuda.of_store(store)) as env:
        found = proofs(places, env, store, only=wanted, jobs=jobs)
    if json:
        put(found)
    else:
        rows = [(one.id, one.test, one.verdict.value, len(one.proving), len(one.passed), one.why) for one in found]
        print(console.table(("id", "test", "verdict", "fail without", "pass with", "why"), rows))
    for one in found:
        for name in one.skipped:
            console.warn(f"{one.id}: skipped {name}")
    wrong = [one.id for one in found if not one.proved]
    if wrong:
        raise CheckFailed(f"not proved: {', '.join(wrong)}", do="invoke patches.prove --only ID")
