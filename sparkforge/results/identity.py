"""Identity of a source: a file of the checkout, or a file of an upstream's tree with our series applied.

All of it is told from the checkout alone, so that the test needs no store and no network: a file that the series
touches is the blob that the last patch names on its `index` line (`patches.check` holds mails to whole, true ids);
a file that it does not touch is the pin's, which is the sdist's sha256.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from sparkforge.core.errors import BadInput
from sparkforge.core.hashing import sha256_file
from sparkforge.core.paths import ROOT
from sparkforge.inputs.recipes import Stack, Upstream
from sparkforge.patches.diff import split
from sparkforge.patches.series import load

_FEATURE = re.compile(rb"^Feature: *(\S+)$", re.MULTILINE)
_GONE = re.compile(r"^0+$")
_MAGIC = frozenset("*?[")
_DO = "correct results/proofs.yaml"


@dataclass(frozen=True)
class Series:
    """What a series does to files, read from its mails.

    Attributes:
        blobs: git's id of each touched file after the last patch that touches it; a deleted one is not in it.
        of: files that each patch touches, by feature.
    """

    blobs: Mapping[str, str]
    of: Mapping[str, frozenset[str]]


def touched(folder: Path) -> Series:
    """What the series in a folder does."""
    blobs: dict[str, str] = {}
    of: dict[str, frozenset[str]] = {}
    for patch in load(folder).patches:
        sections = split(patch.name, patch.raw)
        feature = _FEATURE.search(patch.raw)
        of[feature[1].decode() if feature else patch.name] = frozenset(section.path for section in sections)
        for section in sections:
            index = section.value(b"index ")
            if index is not None:
                blobs[section.path] = index.split(b"..")[1].split(b" ")[0].decode()
    return Series({path: blob for path, blob in blobs.items() if not _GONE.match(blob)}, of)


@dataclass(frozen=True)
class Sources:
    """Sources as they are in a checkout.

    Attributes:
        upstreams: of the stack.
        root: the checkout.
    """

    upstreams: Mapping[str, Upstream]
    root: Path = ROOT

    @classmethod
    def of(cls, stack: Stack) -> Sources:
        """Sources of a stack."""
        return cls(stack.upstreams)

    @cached_property
    def series(self) -> dict[str, Series]:
        """What each upstream's series does."""
        return {name: touched(self.root / one.series) for name, one in self.upstreams.items()}

    def found(self, patterns: Sequence[str]) -> dict[str, str]:
        """Identity of every source that some patterns name, by name, and of each pin that is named.

        Args:
            patterns: `path` or `glob` of the checkout; `UPSTREAM:path` of a tree, `UPSTREAM:glob` of the files that the
                series touches, now none perhaps, `UPSTREAM:@F-03` for those of one patch; with `!` in front, what not
                to read of all that stands before it.

        Raises:
            BadInput: a pattern names nothing.
        """
        names: dict[str, str] = {}
        for pattern in patterns:
            if pattern.startswith("!"):
                names = {name: value for name, value in names.items() if not fnmatchcase(name, pattern[1:])}
            else:
                names |= self._named(pattern)
        return dict(sorted(names.items()))

    def _named(self, pattern: str) -> dict[str, str]:
        upstream, colon, path = pattern.partition(":")
        if not colon:
            files = [file for file in self.root.glob(pattern) if file.is_file() and "__pycache__" not in file.parts]
            if not files:
                raise BadInput(f"no source is named {pattern}", why=f"nothing of {self.root} is", do=_DO)
            return {str(file.relative_to(self.root)): sha256_file(file) for file in files}
        if upstream not in self.upstreams:
            raise BadInput(f"no source is named {pattern}", why=f"upstreams: {', '.join(self.upstreams)}", do=_DO)
        series = self.series[upstream]
        if path.startswith("@"):
            if path[1:] not in series.of:
                raise BadInput(f"no source is named {pattern}", why=f"patches: {', '.join(sorted(series.of))}", do=_DO)
            chosen = sorted(series.of[path[1:]])
        elif _MAGIC & set(path):
            chosen = [one for one in series.blobs if fnmatchcase(one, path)]
        else:
            chosen = [path]
        found = {f"{upstream}:{one}": self.in_tree(upstream, one) for one in chosen}
        return {f"{upstream}:": self.of_pin(upstream), **found}

    def in_tree(self, upstream: str, path: str) -> str:
        """Identity of a file of the patched tree, told from the mails; whether it is there at all is not."""
        blob = self.series[upstream].blobs.get(path)
        return f"blob {blob}" if blob else self.of_pin(upstream)

    def of_pin(self, upstream: str) -> str:
        """Identity of every file that a series does not touch."""
        return f"pin {self.upstreams[upstream].sdist.sha256}"
