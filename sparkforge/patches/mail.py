"""A patch as a mail: `git mailinfo` reads the message, `diff` the rest; the diff stays bytes."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkforge.core.errors import BadInput
from sparkforge.git.repository import Git
from sparkforge.patches.diff import SECTION, Section, split
from sparkforge.patches.trailers import Trailers, parse


@dataclass(frozen=True)
class Mail:
    """A patch that was read; `name` is its file name.

    `subject` is without "[PATCH]", `body` is without the trailers, and `message` is all three, as a commit has them.
    `diff` is every byte of the file from the first `diff --git` on.
    """

    name: str
    author: str
    email: str
    date: str
    subject: str
    body: str
    trailers: Trailers
    message: bytes
    diff: bytes
    sections: tuple[Section, ...]

    @property
    def id(self) -> str:
        """Its `Feature:`, else its file name."""
        return self.trailers.feature or self.name

    @property
    def who(self) -> str:
        """Author and date, as a commit has them."""
        return f"{self.author} <{self.email}> {self.date}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Files that it touches."""
        return tuple(section.path for section in self.sections)

    def facts(self, upstream: str) -> dict[str, Any]:
        """What `patches.list` says about it."""
        hunks = [hunk for section in self.sections for hunk in section.hunks]
        return {
            "id": self.id,
            "upstream": upstream,
            "file": self.name,
            "title": self.subject,
            "upstream_status": self.trailers.upstream_status,
            "files": self.paths,
            "added": sum(len(hunk.added) for hunk in hunks),
            "removed": sum(len(hunk.removed) for hunk in hunks),
            "tests": self.trailers.tests,
            "depends_on": self.trailers.depends_on,
            "drop_when": self.trailers.drop_when,
        }


def read(git: Git, name: str, raw: bytes) -> Mail:
    """Patch from its bytes; any repository will do.

    Raises:
        BadInput: it is not a mail, has no diff, or is encoded for transport.
    """
    with tempfile.TemporaryDirectory(prefix="sparkforge-mail-") as folder:
        message_file, diff_file = Path(folder, "message"), Path(folder, "diff")
        # -b keeps every bracket but [PATCH]; scissors would cut a message that quotes a dashed line.
        said = git.run(
            "mailinfo", "-b", "--no-scissors", "--encoding=UTF-8", message_file, diff_file, stdin=raw
        ).decode("utf-8", "replace")
        text, diff = message_file.read_bytes().decode("utf-8", "replace"), diff_file.read_bytes()
    letter = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    for wanted in ("Author", "Email", "Subject", "Date"):
        if not letter.get(wanted):
            do = "write it with `git format-patch`"
            raise BadInput(f"{name} is not a patch mail", why=f"it has no {wanted}", do=do)
    if SECTION not in diff:
        raise BadInput(f"{name} has no git diff", why="no line begins with `diff --git`")
    diff = diff[diff.index(SECTION) :]
    if not raw.endswith(diff):
        why = "its diff is not in it byte for byte"
        raise BadInput(f"{name} is encoded for transport", why=why, do="export it with 8bit")
    body, trailers = parse(text)
    return Mail(
        name=name,
        author=letter["Author"],
        email=letter["Email"],
        date=letter["Date"],
        subject=letter["Subject"],
        body=body,
        trailers=trailers,
        message=f"{letter['Subject']}\n\n{text.strip()}".strip().encode() + b"\n",
        diff=diff,
        sections=split(name, diff),
    )
