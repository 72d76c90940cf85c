"""How often the verdicts of `invoke rebase --series` are what Debian's maintainers did: writes docs/rebase-score.md.

    python tools/measure/rebase_score.py --mirror URL [--suites bookworm,trixie] [--work FOLDER] [NAME ...]

Each NAME is a Debian source package. Its sources in both suites are fetched with `apt-get source` and a configuration
of its own, so the machine's is not touched. The series of the old one is taken to the new upstream source; what became
of each patch in the new series is the truth.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.errors import SparkforgeError
from sparkforge.core.paths import ROOT
from sparkforge.core.store import Store, write_file
from sparkforge.git.of_store import git_of
from sparkforge.git.repository import Git
from sparkforge.patches.rebase.engine import judge
from sparkforge.patches.rebase.foreign import read
from sparkforge.patches.rebase.item import Item
from sparkforge.patches.rebase.lines import telling
from sparkforge.patches.rebase.outcome import Outcome, Verdict
from sparkforge.patches.rebase.trees import imported

SEEN = ("curl", "openssh", "rsync", "shadow", "sudo", "util-linux")  # looked at while the rules were made
FRESH = ("exim4", "less", "nginx", "openldap", "openssl")  # looked at after
KEPT, EDITED, DROPPED = "kept as it was", "kept, edited", "dropped"
_SAME = 0.8
_APT = """Dir::Etc "{0}/etc"; Dir::Etc::sourcelist "sources.list"; Dir::Etc::sourceparts "none";
Dir::State "{0}/state"; Dir::State::status "/var/lib/dpkg/status"; Dir::Cache "{0}/cache"; APT::Sandbox::User "root";
"""

_TEXT = """# What the verdicts of `invoke rebase --series` are worth

Written by `{command}`.
The series that Debian's {old} has for a package was taken to the upstream source of {new}. The truth is what its
maintainers did. A patch of {new} with the same name, title or lines is the same patch; it was edited if its changed
lines differ, else it was kept as it was. "Seen before" are the packages that were looked at while the rules were made.

A maintainer also drops what upstream does not have: a feature that nobody wants any more, a fix made in another way.
No tool can know that, so `dropped` is not always `upstreamed`. What must not happen is the reverse: a proposal to drop
what was kept.
"""


@dataclass(frozen=True)
class Scored:
    """A patch: what the tool said and what the maintainers did."""

    package: str
    verdict: Verdict
    truth: str


def main() -> None:
    """Fetch, judge, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--mirror", required=True, help="a Debian mirror")
    parser.add_argument("--suites", default="bookworm,trixie")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "rebase-score")
    given = parser.parse_args()
    old, new = given.suites.split(",")
    work = given.work.absolute()
    apt(work, given.mirror, (old, new))
    git = git_of(Store.open(work / "store"))
    command = (
        f"python tools/measure/rebase_score.py --mirror URL --suites {given.suites} {' '.join(given.names)}".strip()
    )
    lines = [_TEXT.format(command=command, old=old, new=new)]
    groups = [("given", tuple(given.names))] if given.names else [("seen before", SEEN), ("not seen before", FRESH)]
    for title, names in groups:
        scored: list[Scored] = []
        about = []
        for name in names:
            said, found = score(git, work, name, (old, new))
            about.append(said)
            scored += found
        lines += [f"## Packages {title}", "", *about, "", *tables(scored), ""]
    write_file(ROOT / "docs" / "rebase-score.md", "\n".join(lines).encode())


def apt(work: Path, mirror: str, suites: tuple[str, str]) -> None:
    """A package manager's configuration of its own, with the sources of both suites."""
    below = (
        "etc/apt.conf.d",
        "etc/preferences.d",
        "etc/trusted.gpg.d",
        "state/lists/partial",
        "cache/archives/partial",
    )
    for folder in below:
        (work / folder).mkdir(parents=True, exist_ok=True)
    signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    (work / "etc/sources.list").write_text("".join(f"deb-src {signed} {mirror} {suite} main\n" for suite in suites))
    (work / "apt.conf").write_text(_APT.format(work))
    run(work, "apt-get", "update", "-qq")


def run(work: Path, *words: str | Path, below: str = "") -> str:
    """Output of a command under that configuration."""
    env = {**os.environ, "APT_CONFIG": str(work / "apt.conf"), "LC_ALL": "C"}
    said = subprocess.run(
        words, cwd=work / below, env=env, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return said.stdout.decode()


def source(work: Path, name: str, suite: str) -> tuple[str, Path]:
    """Version and unpacked folder of a source package, patches not applied."""
    # Elsewhere than the files: apt prints no address of what is there already.
    said = run(work, "apt-get", "source", "--only-source", "--print-uris", f"{name}/{suite}", below="etc")
    dsc = re.findall(r"\S+\.dsc(?= )", said)[-1].rpartition("/")[2]
    folder = work / f"{name}-{suite}"
    if not folder.is_dir():
        run(work, "apt-get", "source", "--only-source", "--download-only", "-qq", f"{name}/{suite}")
        run(work, "dpkg-source", "--skip-patches", "--no-check", "-x", dsc, folder)
    return re.sub(r".*_(.*)\.dsc$", r"\1", dsc), folder


def score(git: Git, work: Path, name: str, suites: tuple[str, str]) -> tuple[str, list[Scored]]:
    """A line about a package, and its patches; none where the series is an error by name."""
    (old_version, old), (new_version, new) = (source(work, name, suite) for suite in suites)
    about = f"- {name} {old_version} to {new_version}"
    base, target = imported(git, old), imported(git, new)
    try:
        items = read(old / "debian/patches", git, base)
        verdicts = judge(git, base, target, items).verdicts
        later = read(new / "debian/patches", git, target)
    except SparkforgeError as refused:
        return f"{about}: not judged: {refused.what}" + (f" ({refused.why})" if refused.why else ""), []
    found = [Scored(name, verdict, truth(item, later)) for item, verdict in zip(items, verdicts, strict=True)]
    return f"{about}: {len(found)} patches", found


def truth(item: Item, later: tuple[Item, ...]) -> str:
    """What the maintainers did with a patch."""
    twins = [
        one
        for one in later
        if one.name == item.name or (item.title and one.title == item.title) or base(one.name) == base(item.name)
    ]
    twins = twins or [one for one in later if alike(item, one)]
    if not twins:
        return DROPPED
    return KEPT if any(signed(one) == signed(item) for one in twins) else EDITED


def base(name: str) -> str:
    """A file's name without folders, number and suffix."""
    return re.sub(r"^[0-9]+[-_]|\.(patch|diff)$", "", name.rpartition("--")[2])


def signed(item: Item) -> Counter[bytes]:
    """Changed lines with their sign."""
    hunks = [hunk for section in item.sections for hunk in section.hunks]
    added = [b"+" + line for hunk in hunks for line in hunk.added]
    return Counter(added + [b"-" + line for hunk in hunks for line in hunk.removed])


def alike(one: Item, other: Item) -> bool:
    """Whether most of the lines that one adds the other adds too."""
    ours, theirs = (
        Counter(telling(line for section in item.sections for hunk in section.hunks for line in hunk.added))
        for item in (one, other)
    )
    return ours.total() > 1 and (ours & theirs).total() >= _SAME * max(ours.total(), theirs.total())


def tables(scored: list[Scored]) -> list[str]:
    """Outcomes against the truth, and the figures that follow."""
    head = [outcome.value for outcome in Outcome]
    lines = [f"| maintainers | {' | '.join(head)} | all |", "| --- |" + " --- |" * (len(head) + 1)]
    for fact in (KEPT, EDITED, DROPPED):
        row = Counter(one.verdict.outcome for one in scored if one.truth == fact)
        lines.append(f"| {fact} | {' | '.join(str(row[outcome]) for outcome in Outcome)} | {row.total()} |")
    drops = [one for one in scored if one.verdict.outcome.advice == "drop"]
    wrong = [one for one in drops if one.truth != DROPPED]
    kept = [one for one in scored if one.truth == KEPT]
    carried = [one for one in kept if one.verdict.outcome.advice == "carry"]
    edited = [one for one in scored if one.truth == EDITED]
    hands = [one for one in edited if one.verdict.outcome.advice != "drop"]
    gone = [one for one in scored if one.truth == DROPPED]
    applies = sum(one.verdict.outcome.advice == "carry" for one in gone)
    looks = sum(one.verdict.outcome.advice not in {"carry", "drop"} for one in gone)
    return [
        *lines,
        "",
        f"- Proposed to drop: {len(drops)}. Dropped by the maintainers: {len(drops) - len(wrong)}. Wrong: {len(wrong)}"
        + "".join(f"; {one.package} {one.verdict.id} ({one.verdict.outcome.value})" for one in wrong)
        + ".",
        f"- Kept as they were: {len(kept)}; the tool carries {len(carried)} of them without a hand.",
        f"- Edited: {len(edited)}; {len(hands)} were not proposed to drop.",
        f"- Dropped: {len(gone)}; proposed {len(drops) - len(wrong)}, still apply {applies}, to look at {looks}.",
    ]


if __name__ == "__main__":
    main()
