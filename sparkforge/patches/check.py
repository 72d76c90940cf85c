"""`patches.check`: everything that can be wrong with a series, found without running it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from sparkforge.core.errors import SparkforgeError
from sparkforge.git.objects import changed, contents
from sparkforge.patches import drop, stale, trailers, traps
from sparkforge.patches.mail import Mail
from sparkforge.patches.place import Place
from sparkforge.patches.series import ORDER_FILE, TREE_FILE, Series, load
from sparkforge.patches.traps import Fault, Trap
from sparkforge.patches.walk import applied, commits, formatted, same

PLACEHOLDER = "FILL-IN"
SUBJECT = re.compile(r"^[^\s:][^:]*: \S")
_OTHER_FILES = (ORDER_FILE, TREE_FILE, "README.md")


@dataclass(frozen=True)
class SeriesReport:
    """One series: number of patches, the tree they lead to (None if one does not apply), and what is wrong."""

    upstream: str
    patches: int
    tree: str | None
    faults: tuple[Fault, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def check(places: Iterable[Place], *, beside: Iterable[Place] = ()) -> tuple[SeriesReport, ...]:
    """Check series against their pins. Ids are unique in a stack.

    Args:
        places: what to check.
        beside: other upstreams of the stack, on whose patches these may depend.
    """
    every = list(places)
    known = {at.name: _ids(at) for at in (*beside, *every)}
    reports = []
    for at in every:
        elsewhere = {item: name for name, ids in known.items() if name != at.name for item in ids}
        report = _check(at, frozenset(elsewhere))
        twice = [
            Fault(at.name, "one id for two patches", f"{item} is also in {elsewhere[item]}")
            for item in known[at.name]
            if item in elsewhere
        ]
        reports.append(replace(report, faults=report.faults + tuple(twice)))
    return tuple(reports)


def _ids(at: Place) -> tuple[str, ...]:
    try:
        return tuple(mail.trailers.feature for mail in load(at.folder).mails(at.git) if mail.trailers.feature)
    except SparkforgeError:  # reported when that series is checked
        return ()


def _check(at: Place, others: frozenset[str]) -> SeriesReport:
    try:
        series = load(at.folder)
    except SparkforgeError as bad:
        return SeriesReport(at.name, 0, None, (_told(ORDER_FILE, bad),))
    found = _strays(at, series)
    found += [fault for patch in series.patches for fault in traps.faults(patch.name, patch.raw)]
    if found:
        return SeriesReport(at.name, len(series.patches), None, tuple(found))
    try:
        mails = series.mails(at.git)
        for mail in mails:
            found += of_mail(at, mail)
        found += order(mails, others)
        reached, faults = _walk(at, series, mails)
        found += faults
    except SparkforgeError as bad:
        return SeriesReport(at.name, len(series.patches), None, (*found, _told(at.name, bad)))
    return SeriesReport(at.name, len(series.patches), reached, tuple(found))


def _told(patch: str, bad: SparkforgeError) -> Fault:
    return Fault(patch, bad.what, bad.why, bad.do)


def _strays(at: Place, series: Series) -> list[Fault]:
    names = {patch.name for patch in series.patches}
    return [
        Fault(path.name, "not part of a series", f"only patches and {', '.join(_OTHER_FILES)} belong there")
        for path in sorted(at.folder.iterdir())
        if path.name not in names and path.name not in _OTHER_FILES
    ]


def of_mail(at: Place, mail: Mail) -> list[Fault]:
    """What is wrong with one patch by itself: its message, its tests, whether the pin makes it needless."""
    found = []
    if not SUBJECT.match(mail.subject):
        found.append(Fault(mail.name, "its subject names no area", f"{mail.subject!r} is not `area: what changes`"))
    if not mail.body.strip():
        found.append(Fault(mail.name, "no intent", "its message has no body that says why"))
    elif PLACEHOLDER.encode() in mail.message:
        found.append(Fault(mail.name, "no intent", f"its message still says {PLACEHOLDER}"))
    wrong = trailers.faults(mail.trailers)
    found += [Fault(mail.name, "a trailer is wrong", why) for why in wrong]
    found += [
        Fault(mail.name, "no test", f"{test} does not exist")
        for test in mail.trailers.tests
        if not (at.root / test).is_file()
    ]
    fact = mail.trailers.drop_when
    if fact and not drop.faults(fact) and drop.holds(at.git, at.tree, fact):
        found.append(Fault(mail.name, "needless at this pin", f"Drop-When: {fact}", "drop the patch"))
    return found


def order(mails: Sequence[Mail], others: frozenset[str]) -> list[Fault]:
    """What is wrong between patches: a repeated id, a dependency on a later or an unknown patch."""
    found = []
    seen: dict[str, str] = {}
    ids = {mail.trailers.feature for mail in mails}
    for mail in mails:
        for wanted in mail.trailers.depends_on:
            if wanted not in seen and wanted not in others:
                why = "comes after it" if wanted in ids else "is in no series"
                found.append(Fault(mail.name, "depends on a patch that is not before it", f"{wanted} {why}"))
        feature = mail.trailers.feature
        if feature in seen:
            found.append(Fault(mail.name, "one id for two patches", f"{feature} is also {seen[feature]}"))
        if feature:
            seen[feature] = mail.name
    return found


def _walk(at: Place, series: Series, mails: Sequence[Mail]) -> tuple[str | None, list[Fault]]:
    """Apply patch by patch and check every step; the tree is None if a patch does not apply."""
    trees = (at.tree, *applied(at.git, at.tree, series))
    found = stale.faults(at.git, list(zip(mails, trees, strict=False)))
    if len(trees) <= len(mails):
        mail = mails[len(trees) - 1]
        if mail.name not in {fault.patch for fault in found}:
            found.append(Fault(mail.name, "does not apply", "git refuses it, though every hunk is in its place"))
        return None, found
    for mail, before, after in zip(mails, trees, trees[1:], strict=False):
        if before == after:
            found.append(Fault(mail.name, Trap.CHANGES_NOTHING.value, "the tree is the same after it"))
        found += _compiles(at, mail, before, after)
    if not found:
        found += _again(at, series)
    if series.recorded is None:
        found.append(Fault(TREE_FILE, "no tree is recorded", f"the series reaches {trees[-1]}", "patches.export"))
    elif series.recorded != trees[-1]:
        found.append(
            Fault(TREE_FILE, "another tree is recorded", f"{series.recorded}, reached {trees[-1]}", "patches.export")
        )
    return trees[-1], found


def _compiles(at: Place, mail: Mail, before: str, after: str) -> list[Fault]:
    """Python files that compile before a patch and do not after it."""
    pairs = {
        path: (old, new)
        for path, (old, new) in changed(at.git, before, after).items()
        if new is not None and path.endswith(".py")
    }
    data = contents(at.git, (side.blob for sides in pairs.values() for side in sides if side is not None))
    found = []
    for path, (old, new) in pairs.items():
        said = _syntax(data[new.blob] or b"", path) if new else None
        if said and (old is None or _syntax(data[old.blob] or b"", path) is None):
            found.append(Fault(mail.name, "its Python does not compile", said))
    return found


def _syntax(source: bytes, path: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as bad:
        return f"{path}: {bad}"
    return None


def _again(at: Place, series: Series) -> list[Fault]:
    """Patches that an export would write with another name or other bytes."""
    steps = commits(at.git, at.commit, series)
    fresh = formatted(at.git, at.commit, steps[-1].commit) if steps else ()
    if len(fresh) != len(series.patches):
        return [Fault(ORDER_FILE, "not canonical", f"{len(series.patches)} patches give {len(fresh)} on export")]
    found = []
    for ours, exported in zip(series.patches, fresh, strict=True):
        why = [f"an export names it {exported.name}"] if ours.name != exported.name else []
        why += [_difference(ours.raw, exported.raw)] if not same(ours.raw, exported.raw) else []
        found += [Fault(ours.name, "not canonical", one, "invoke patches.export --refresh") for one in why]
    return found


def _difference(ours: bytes, exported: bytes) -> str:
    """Where the first differing line is."""
    lines = zip_longest(ours.split(b"\n"), exported.split(b"\n"))
    number, pair = next((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1])
    wrote, writes = ("missing" if text is None else repr(text.decode(errors="replace")) for text in pair)
    return f"line {number} is {wrote}, an export writes {writes}"
