"""`Drop-When:` a fact about a pin's tree that makes a patch needless.

    contains PATH :: REGEX    the file is there and the regex matches somewhere in it
    lacks PATH :: REGEX       the file is there and the regex matches nowhere
    exists PATH               the file is there
    missing PATH              it is not

Several are joined by ` && ` and must all hold. The regex is Python's, `^` and `$` match at lines. A file that is
not there makes both `contains` and `lacks` false: a file that moved says nothing about what is in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from sparkforge.core.errors import BadInput
from sparkforge.git.objects import contents
from sparkforge.git.repository import Git

JOIN = " && "


class Kind(Enum):
    """What is asked of the file."""

    CONTAINS = "contains"
    LACKS = "lacks"
    EXISTS = "exists"
    MISSING = "missing"

    @property
    def reads(self) -> bool:
        """Whether a regex belongs to it."""
        return self in {Kind.CONTAINS, Kind.LACKS}


@dataclass(frozen=True)
class Clause:
    """One fact.

    Attributes:
        kind: what is asked.
        path: of the file, below the tree's root.
        regex: None for those that only look whether the file is there.
    """

    kind: Kind
    path: str
    regex: re.Pattern[str] | None = None

    def holds(self, data: bytes | None) -> bool:
        """Whether the fact is so for a file with this content; None is no file."""
        if self.kind is Kind.MISSING:
            return data is None
        if data is None or self.regex is None:
            return data is not None and self.kind is Kind.EXISTS
        matched = self.regex.search(data.decode("utf-8", "replace")) is not None
        return matched is (self.kind is Kind.CONTAINS)


def parse(text: str) -> tuple[Clause, ...]:
    """Facts of a trailer.

    Raises:
        BadInput: not in the grammar, or the regex is none.
    """
    return tuple(_clause(part.strip()) for part in text.split(JOIN))


def _clause(part: str) -> Clause:
    word, _, rest = part.partition(" ")
    try:
        kind = Kind(word)
    except ValueError:
        words = ", ".join(kind.value for kind in Kind)
        raise BadInput(f"Drop-When: {part!r} begins with none of {words}") from None
    path, cut, pattern = (piece.strip() for piece in rest.partition(" :: "))
    if not path or kind.reads is not bool(cut and pattern) or " " in path:
        form = f"{word} PATH :: REGEX" if kind.reads else f"{word} PATH"
        raise BadInput(f"Drop-When: {part!r} is not of the form `{form}`")
    try:
        return Clause(kind, path, re.compile(pattern, re.MULTILINE) if kind.reads else None)
    except re.error as bad:
        raise BadInput(f"Drop-When: {pattern!r} is no regex", why=str(bad)) from bad


def faults(text: str) -> list[str]:
    """What is wrong with the trailer's form, as a list of none or one."""
    try:
        parse(text)
    except BadInput as bad:
        return [f"{bad.what} ({bad.why})" if bad.why else bad.what]
    return []


def holds(git: Git, tree: str, text: str) -> bool:
    """Whether all facts are so in a pin's tree.

    Args:
        git: repository with the tree.
        tree: id of the pin's tree, never of the patched one.
        text: value of the trailer.

    Raises:
        BadInput: not in the grammar.
    """
    clauses = parse(text)
    data = contents(git, (f"{tree}:{clause.path}" for clause in clauses))
    return all(clause.holds(data[f"{tree}:{clause.path}"]) for clause in clauses)
