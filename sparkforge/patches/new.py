"""`patches.new`: the uncommitted change of a work tree becomes a patch, with the letter that it must have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import shown
from sparkforge.patches.check import PLACEHOLDER
from sparkforge.patches.edit import AUTHOR, opened, uncommitted
from sparkforge.patches.place import Place
from sparkforge.patches.trailers import FEATURE

_LETTER = """{title}

{placeholder}: why this change is needed, and what it does.

Upstream-Status: Pending
Drop-When: contains {path} :: {placeholder}
Test: {test}
Feature: {feature}
"""


@dataclass(frozen=True)
class Begun:
    """A patch that was begun.

    Attributes:
        commit: in the work tree.
        paths: what it changes.
        test: the file that is to prove its intent, relative to the checkout.
        then: what to do next, one line each.
    """

    commit: str
    paths: tuple[str, ...]
    test: str
    then: tuple[str, ...]


def new(at: Place, *, feature: str, title: str, path: Path | None = None, now: datetime | None = None) -> Begun:
    """Commit what is uncommitted in a work tree, with a letter to fill in.

    Args:
        at: the upstream.
        feature: id of the patch, such as V-03.
        title: subject, `area: what changes`.
        path: the work tree; where `patches.edit` makes it if None.
        now: date of the author; the present if None.

    Raises:
        BadInput: no such id, it is taken, or nothing is changed.
    """
    if not FEATURE.match(feature):
        raise BadInput(f"{feature!r} is no patch id", why="an id is a letter, a dash and two digits, such as V-03")
    if not re.match(r"^[^\s:][^:]*: \S", title):
        raise BadInput(f"{title!r} names no area", why="a title is `area: what changes`")
    tree = opened(at, path)
    where = shown(tree.path)
    taken = tree.git.text("log", "--format=%(trailers:key=Feature,valueonly)", f"{tree.base}..{tree.head}").split()
    if feature in taken:
        raise BadInput(f"{feature} is taken", why=f"patches in {where}: {', '.join(sorted(taken))}")
    changed = uncommitted(tree)
    if not changed:
        raise BadInput(f"nothing is changed in {where}", do="edit its files, then run this again")
    words = re.sub(r"[^a-z0-9]+", "_", title.partition(": ")[2].lower()).strip("_")[:40].rstrip("_")
    test = f"tests/patches/{at.name}/test_{feature.replace('-', '').lower()}_{words}.py"
    letter = _LETTER.format(title=title, placeholder=PLACEHOLDER, path=changed[0], test=test, feature=feature)
    date = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S%z")
    who = {
        "GIT_AUTHOR_NAME": AUTHOR[0],
        "GIT_AUTHOR_EMAIL": AUTHOR[1],
        "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_DATE": date,
    }
    tree.git.run("add", "--all")
    tree.git.run("commit", "--quiet", "--file=-", stdin=letter.encode(), env=who)
    return Begun(
        commit=tree.git.text("rev-parse", "HEAD"),
        paths=changed,
        test=test,
        then=(
            f"git -C {where} commit --amend   (say why; fill in every {PLACEHOLDER})",
            f"write {test}, which fails without the patch",
            f"invoke patches.export {at.name}",
            f"invoke patches.check && invoke patches.prove --only {feature}",
        ),
    )
