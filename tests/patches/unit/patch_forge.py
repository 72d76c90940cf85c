"""Throwaway pins and series: real repositories, made with git's own plumbing."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkforge.git.repository import Git
from sparkforge.patches.place import Place
from sparkforge.patches.series import Patch, Series, load
from sparkforge.patches.walk import formatted

DATE = "Mon, 1 Sep 2025 12:00:00 +0200"
NUMBERS = "".join(f"line {number}\n" for number in range(1, 31)).encode()
BASE = {
    "pkg/__init__.py": b"",
    "pkg/numbers.txt": NUMBERS,
    "pkg/code.py": b"def one():\n    return 1\n\n\ndef two():\n    return 2\n\n\ndef three():\n    return 3\n",
    "data/blob.bin": bytes(range(256)),
    "README": b"readme\nwithout a last line feed",
}
Change = Mapping[str, bytes | None]


def message(feature="V-01", title="core: change a thing", *, body="It was wrong.", depends=(), tests=None, drop=None):
    lines = ["Upstream-Status: Pending", f"Drop-When: {drop or 'missing pkg/numbers.txt'}"]
    lines += [f"Depends-on: {item}" for item in depends]
    lines += [f"Test: {test}" for test in (tests or ["tests/patches/demo/test_it.py"])]
    lines.append(f"Feature: {feature}")
    trailers = "\n".join(lines)
    return f"{title}\n\n{body}\n\n{trailers}\n" if body else f"{title}\n\n{trailers}\n"


@dataclass
class Forge:
    """A bare repository with a pin, and a checkout with the folder of its series."""

    git: Git
    root: Path
    commit: str

    @property
    def place(self) -> Place:
        tree = self.git.text("rev-parse", f"{self.commit}^{{tree}}")
        return Place("demo", self.git, self.commit, tree, self.root / "patches/demo/1.0", self.root)

    def made(
        self, parent: str | None, change: Change, text: str = "pin\n", modes: Mapping[str, str] | None = None
    ) -> str:
        """Commit of a change upon a parent."""
        with tempfile.TemporaryDirectory() as folder:
            env = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
            if parent:
                self.git.run("read-tree", parent, env=env)
            lines = []
            for path, data in change.items():
                blob = "0" * 40 if data is None else self.git.text("hash-object", "-w", "--stdin", stdin=data)
                mode = "0" if data is None else (modes or {}).get(path, "100644")
                lines.append(f"{mode} {blob}\t{path}\0")
            self.git.run("update-index", "-z", "--index-info", stdin="".join(lines).encode(), env=env)
            tree = self.git.text("write-tree", env=env)
        who = {
            "GIT_AUTHOR_NAME": "Jürgen Maintainer",
            "GIT_AUTHOR_EMAIL": "maintainers@sparkforge.invalid",
            "GIT_AUTHOR_DATE": DATE,
            "GIT_COMMITTER_DATE": "@0 +0000",
        }
        above = ["-p", parent] if parent else []
        return self.git.text("commit-tree", tree, *above, stdin=text.encode(), env=who)

    def patches(self, *changes: tuple[str, Change]) -> tuple[Patch, ...]:
        """Canonical patches of changes upon the pin."""
        head = self.commit
        for text, change in changes:
            head = self.made(head, change, text)
        return formatted(self.git, self.commit, head)

    def write(self, patches: Sequence[Patch], tree: str | None = None) -> Series:
        """Lay the patches into the folder and load them."""
        folder = self.place.folder
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for patch in patches:
            (folder / patch.name).write_bytes(patch.raw)
        (folder / "series").write_text("# order\n" + "".join(f"{patch.name}\n" for patch in patches))
        if tree:
            (folder / "tree").write_text(f"{tree}\n")
        return load(folder)

    def test_file(self, name: str = "tests/patches/demo/test_it.py", text: str = "def test_it(): assert 1\n") -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def make_forge(folder: Path, files: Mapping[str, bytes] = BASE) -> Forge:
    forge = Forge(Git.init_bare(folder / "store.git"), folder / "checkout", "")
    forge.root.mkdir()
    forge.commit = forge.made(None, files)
    return forge


def changed_numbers(*numbers: int, word: str = "changed") -> bytes:
    lines = NUMBERS.split(b"\n")
    for number in numbers:
        lines[number - 1] = f"{word} {number}".encode()
    return b"\n".join(lines)
