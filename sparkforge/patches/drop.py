"""`Drop-When:` a fact about a pin's tree that makes a patch needless.

    contains PATH :: REGEX    the file exists and the regex matches somewhere in it
    lacks PATH :: REGEX       the file exists and the regex matches nowhere
    exists PATH               the file exists
    missing PATH              it does not

Several are joined by ` && ` and must all hold. The regex is Python's; `^` and `$` match at lines. If the file does not
exist, `contains` and `lacks` are both false: a moved file says nothing about its content. Of `PATH|PATH` the first that
exists is meant, so that a fact is still told where upstream moved the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparkforge.core.errors import BadInput
from sparkforge.git.objects import contents
from sparkforge.git.repository import Git

JOIN = " && "
_READING = ("contains", "lacks")
_WORDS = (*_READING, "exists", "missing")


@dataclass(frozen=True)
class Clause:
    """One fact: a word, the paths of a file, and for `contains` and `lacks` a regex."""

    word: str
    paths: tuple[str, ...]
    regex: re.Pattern[str] | None = None

    def holds(self, data: bytes | None) -> bool:
        """Whether the fact holds for a file with this content; None is no file."""
        if data is None or self.regex is None:
            return (data is not None) is (self.word == "exists") and self.word not in _READING
        return (self.regex.search(data.decode("utf-8", "replace")) is not None) is (self.word == "contains")


def parse(text: str) -> tuple[Clause, ...]:
    """Facts of a trailer.

    Raises:
        BadInput: they do not follow the grammar, or a regex is invalid.
    """
    return tuple(_clause(part.strip()) for part in text.split(JOIN))


def _clause(part: str) -> Clause:
    word, _, rest = part.partition(" ")
    if word not in _WORDS:
        raise BadInput(f"Drop-When: {part!r} begins with none of {', '.join(_WORDS)}")
    path, cut, pattern = (piece.strip() for piece in rest.partition(" :: "))
    if not path or (word in _READING) is not bool(cut and pattern) or " " in path:
        form = f"{word} PATH :: REGEX" if word in _READING else f"{word} PATH"
        raise BadInput(f"Drop-When: {part!r} is not of the form `{form}`")
    try:
        return Clause(word, tuple(path.split("|")), re.compile(pattern, re.MULTILINE) if word in _READING else None)
    except re.error as bad:
        raise BadInput(f"Drop-When: {pattern!r} is not a regex", why=str(bad)) from bad


def faults(text: str) -> list[str]:
    """What is wrong with the trailer's form: nothing or one sentence."""
    try:
        parse(text)
    except BadInput as bad:
        return [f"{bad.what} ({bad.why})" if bad.why else bad.what]
    return []


def holds(git: Git, tree: str, text: str) -> bool:
    """Whether all facts hold in a pin's tree (never the patched one).

    Raises:
        BadInput: the text does not follow the grammar.
    """
    clauses = parse(text)
    data = contents(git, (f"{tree}:{path}" for clause in clauses for path in clause.paths))

    def first(clause: Clause) -> bytes | None:
        found = (data[f"{tree}:{path}"] for path in clause.paths)
        return next((one for one in found if one is not None), None)

    return all(clause.holds(first(clause)) for clause in clauses)
