"""A patch to carry, whether it is a mail of ours or a plain diff of somebody else's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sparkforge.git.repository import Git
from sparkforge.patches.diff import Section, split
from sparkforge.patches.mail import Mail
from sparkforge.patches.series import Series


@dataclass(frozen=True)
class Item:
    """A patch to carry.

    Attributes:
        name: file name.
        raw: a git diff, or a mail with one.
        id: its feature, else its file name.
        title: its subject.
        drop_when: its predicate; "" for none.
        depends_on: ids of other patches.
        mail: the letter; None for a patch without one.
        remarks: what was odd about the file and was mended to read it.
    """

    name: str
    raw: bytes
    id: str
    title: str
    drop_when: str = ""
    depends_on: tuple[str, ...] = ()
    mail: Mail | None = None
    remarks: tuple[str, ...] = ()

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Its diff, file by file."""
        return self.mail.sections if self.mail else split(self.name, self.raw)

    @property
    def paths(self) -> frozenset[str]:
        """Files that it touches."""
        return frozenset(section.path for section in self.sections)


def of_series(git: Git, series: Series) -> tuple[Item, ...]:
    """The patches of a series of ours, in order."""
    return tuple(
        Item(mail.name, patch.raw, mail.id, mail.subject, mail.trailers.drop_when, mail.trailers.depends_on, mail)
        for mail, patch in zip(series.mails(git), series.patches, strict=True)
    )


def named(items: Sequence[Item], names: frozenset[str]) -> frozenset[str]:
    """Ids of the patches that are named by id or by file name; names that are no patch's are kept as they are."""
    ids = {name: item.id for item in items for name in (item.name, item.id)}
    return frozenset(ids.get(name, name) for name in names)
