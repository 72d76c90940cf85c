"""What an export would lose: patches, files and hunks that were in a series and are in it no more."""

from __future__ import annotations

from collections.abc import Sequence

from sparkforge.patches.diff import Hunk, Section
from sparkforge.patches.mail import Mail


def losses(old: Sequence[Mail], new: Sequence[Mail]) -> list[str]:
    """What is lost, one sentence each.

    A hunk that was edited is not lost: of its lines some are still in the same file, in this patch or another, or
    the patch has another hunk there in its stead.
    """
    twins = {mail.id: mail for mail in new}
    twins |= {mail.subject: mail for mail in new if mail.subject not in twins}
    found = []
    for mail in old:
        twin = twins.get(mail.id) or twins.get(mail.subject)
        if twin is None:
            found.append(f"{mail.name}: the patch is gone")
            continue
        for section in mail.sections:
            elsewhere = _of(new, section.path)
            here = _of([twin], section.path)
            if not elsewhere:
                found.append(f"{mail.name}: {section.path} is no longer changed")
                continue
            known = set().union(*(_lines(hunk) for part in elsewhere for hunk in part.hunks))
            before = set().union(*(_lines(hunk) for part in _of(old, section.path) for hunk in part.hunks))
            vanished = [hunk for hunk in section.hunks if not _lines(hunk) & known]
            appeared = sum(not _lines(hunk) & before for part in here for hunk in part.hunks)
            found += [
                f"{mail.name}: {section.path}: the hunk at line {hunk.line} is gone" for hunk in vanished[appeared:]
            ]
    return found


def _of(mails: Sequence[Mail], path: str) -> list[Section]:
    return [section for mail in mails for section in mail.sections if section.path == path]


def _lines(hunk: Hunk) -> set[bytes]:
    """Changed lines, with their sign; blank ones only where there is nothing else."""
    signed = {b"+" + line for line in hunk.added} | {b"-" + line for line in hunk.removed}
    return {line for line in signed if line[1:].strip()} or signed
