"""A report for people: a table of a hundred columns, the conflicts below it, and the same as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from sparkforge.core import console
from sparkforge.patches.rebase.carry import Report
from sparkforge.patches.rebase.outcome import Conflict, Outcome, Probe, Verdict

WIDTH = 100
_HEAD = ("id", "outcome", "then", "why", "title")


def why(one: Verdict) -> str:
    """The fact behind an outcome, in a few words."""
    if one.outcome is Outcome.CASCADE:
        return f"after {', '.join(one.because)}"
    told = {
        Outcome.MOVED: (Probe.STRICT,),
        Outcome.UPSTREAMED: (Probe.REVERSE, Probe.EMPTY, Probe.LINES),
        Outcome.PARTLY: (Probe.LINES,),
        Outcome.OBSOLETE: (Probe.FILES, Probe.DROP_WHEN),
    }.get(one.outcome, ())
    for probe in told:
        found = one.found(probe)
        if found is not None and found.holds:
            short = {Probe.DROP_WHEN: "Drop-When holds", Probe.REVERSE: "reverse apply", Probe.EMPTY: "empty merge"}
            return short.get(probe, found.said)
    if one.outcome is Outcome.MERGED:
        return ", ".join(f"{old} is {new}" for old, new in one.renamed)
    if one.conflicts:
        files = {conflict.path for conflict in one.conflicts}
        return f"{_count(len(one.conflicts), 'hunk')} in {_count(len(files), 'file')}"
    return ""


def table(report: Report) -> str:
    """One line a patch, within a hundred columns."""
    return console.table(_HEAD, [_row(one) for one in report.verdicts], width=WIDTH)


def _row(one: Verdict) -> tuple[str, ...]:
    return one.id, one.outcome.value, one.then, why(one), one.title


def summary(report: Report) -> str:
    """How many came out how, in the order of the outcomes."""
    counts = ((report.count(outcome), outcome.value) for outcome in Outcome)
    told = ", ".join(f"{count} {name}" for count, name in counts if count)
    return f"{report.upstream} {report.start} -> {report.target}: {len(report.verdicts)} patches: {told}"


def details(report: Report) -> Iterable[str]:
    """Lines on every patch that a person must look at: the evidence, and each conflict with its two sides."""
    for one in report.verdicts:
        if one.outcome in {Outcome.CLEAN, Outcome.MOVED} and not one.remarks:
            continue
        yield ""
        yield f"{one.id}  {one.outcome.value}  {one.title}"
        yield from (f"  remark: {remark}" for remark in one.remarks)
        yield from (f"  {evidence.probe.value}: {_said(evidence.holds, evidence.said)}" for evidence in one.evidence)
        yield from (f"  moved: {old} is now {new}" for old, new in one.renamed)
        if one.dependants:
            yield f"  stays for: {', '.join(one.dependants)}, which depend on it"
        for conflict in one.conflicts:
            yield from (_clipped(f"    {line}", WIDTH) for line in _conflict(conflict))


def _conflict(conflict: Conflict) -> Iterable[str]:
    yield _place(conflict)
    if conflict.wanted:
        yield "  the patch:"
        yield from (f"    {line}" for line in conflict.wanted)
    if conflict.instead:
        yield f"  upstream, from line {conflict.at} of {conflict.now}:"
        yield from (f"    {line}" for line in conflict.instead)
    if conflict.elsewhere:
        yield f"  its old lines are now in: {', '.join(conflict.elsewhere)}"


def _place(conflict: Conflict) -> str:
    where = f"{conflict.path}, hunk {conflict.hunk} (line {conflict.line})" if conflict.hunk else conflict.path
    origin = f"; since {conflict.origin}" if conflict.origin else ""
    return f"{where}: {conflict.why}{origin}"


def markdown(reports: Iterable[Report], *, command: str) -> str:
    """The reports as a page; quotes no upstream lines, which `command` shows."""
    out: list[str] = []
    for report in reports:
        out += [f"# {report.upstream} {report.start} to {report.target}", ""]
        out += [f"Made by `{command}`. Trees: `{report.old[:12]}` to `{report.new[:12]}`.", ""]
        out += [
            summary(report) + ".",
            "",
            "| patch | outcome | then | why | title |",
            "| --- | --- | --- | --- | --- |",
        ]
        out += [f"| {' | '.join(_cell(cell) for cell in _row(one))} |" for one in report.verdicts]
        for one in report.verdicts:
            out += ["", f"## {one.id}: {one.outcome.value}", ""]
            out += [f"- remark: {_cell(remark)}" for remark in one.remarks]
            out += [f"- {e.probe.value}: {_code(_said(e.holds, e.said), e.probe)}" for e in one.evidence]
            out += [f"- moved: `{old}` is now `{new}`" for old, new in one.renamed]
            if one.dependants:
                out.append(f"- stays for {', '.join(one.dependants)}, which depend on it")
            for conflict in one.conflicts:
                now = f", now at line {conflict.at} of `{conflict.now}`" if conflict.at else ""
                found = f"; its old lines are in {', '.join(conflict.elsewhere)}" if conflict.elsewhere else ""
                out.append(f"- {_place(conflict)}{now}{found}")
        out.append("")
    return "\n".join(out)


def _said(holds: bool, said: str) -> str:
    word = "yes" if holds else "no"
    return f"{word} ({said})" if said else word


def _code(said: str, probe: Probe) -> str:
    word, _, rest = said.partition(" (")
    return f"{word}: `{rest.removesuffix(')')}`" if probe is Probe.DROP_WHEN and rest else said


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
