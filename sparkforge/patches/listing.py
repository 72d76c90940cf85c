"""`patches.list`: what each patch is, does and waits for."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sparkforge.patches.place import Place
from sparkforge.patches.series import load

HEAD = ("id", "title", "status", "lines")


class Row(msgspec.Struct, frozen=True):
    """One patch, for a table or as JSON.

    Attributes:
        id: its feature.
        upstream: whose series it is in.
        file: name in the folder.
        title: subject of the mail.
        upstream_status: in the words of OpenEmbedded.
        files: paths that it touches.
        added: lines.
        removed: lines.
        tests: what proves its intent.
        depends_on: ids that must come before.
        drop_when: the fact that makes it needless.
    """

    id: str
    upstream: str
    file: str
    title: str
    upstream_status: str
    files: tuple[str, ...]
    added: int
    removed: int
    tests: tuple[str, ...]
    depends_on: tuple[str, ...]
    drop_when: str


def rows(places: Iterable[Place]) -> tuple[Row, ...]:
    """Every patch of these places, in order.

    Raises:
        BadInput: a series or a mail cannot be read.
    """
    return tuple(
        Row(
            id=mail.id,
            upstream=at.name,
            file=mail.name,
            title=mail.subject,
            upstream_status=mail.trailers.upstream_status,
            files=mail.paths,
            added=mail.added,
            removed=mail.removed,
            tests=mail.trailers.tests,
            depends_on=mail.trailers.depends_on,
            drop_when=mail.trailers.drop_when,
        )
        for at in places
        for mail in load(at.folder).mails(at.git)
    )


def cells(row: Row) -> tuple[str, ...]:
    """A patch in a line, under HEAD."""
    return (row.id, row.title, row.upstream_status.partition(" ")[0], f"+{row.added} -{row.removed}")


def details(row: Row) -> list[tuple[str, str]]:
    """All of a patch, as pairs of a name and a value."""
    return [(name.replace("_", " "), _shown(value)) for name, value in msgspec.structs.asdict(row).items()]


def _shown(value: object) -> str:
    return "\n".join(value) if isinstance(value, tuple) else str(value)
