"""What a rebase leaves in the checkout: the folder of the new series, and the stack with its pin."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import shown
from sparkforge.core.store import Store, write_file
from sparkforge.git.objects import contents
from sparkforge.git.of_store import git_of
from sparkforge.git.repository import Git
from sparkforge.inputs import releases
from sparkforge.inputs.recipes import UNPINNED, Stack, Upstream, load_stack
from sparkforge.patches import walk
from sparkforge.patches.mail import read
from sparkforge.patches.place import Place
from sparkforge.patches.series import ORDER_FILE, Patch, Series, notes, write

# Where sdists say which commit they were made from; some give all of it, some the first digits.
_SAYS_COMMIT = ("flashinfer/_build_meta.py", "vllm/_version.py")
_COMMIT = re.compile(rb"""__git_(?:commit|version)__ = ["']([0-9a-f]{40})["']""")


@dataclass(frozen=True)
class Written:
    """A series that was written.

    Attributes:
        folder: where it lies.
        tree: tree id that it leads to.
        kept: patches whose bytes are those of the old series.
        changed: patches that are not.
        dropped: ids of patches that it lacks.
    """

    folder: Path
    tree: str
    kept: tuple[str, ...]
    changed: tuple[str, ...]
    dropped: tuple[str, ...]


def series(at: Place, work: Path, old: Series) -> Written:
    """Write the commits of a work tree as the series of the new pin.

    Args:
        at: the new pin, and the folder that is written.
        work: the work tree.
        old: the series that was carried; a patch that says the same keeps its bytes.

    Raises:
        CheckFailed: the patches do not lead to the tree of the work tree.
    """
    git = Git(work / ".git")
    fresh = walk.formatted(git, at.commit, git.id("refs/heads/series"))
    before = {read(git, patch.name, patch.raw).id: patch for patch in old.patches}
    ids = {patch.name: read(git, patch.name, patch.raw).id for patch in fresh}
    was = {name: before[item] for name, item in ids.items() if item in before}
    patches = tuple(
        Patch(patch.name, was[patch.name].raw)
        if patch.name in was and walk.same(was[patch.name].raw, patch.raw)
        else patch
        for patch in fresh
    )
    reached = walk.tree(at.git, at.tree, Series(at.name, at.folder.name, at.folder, patches))
    wanted = git.id("refs/heads/series^{tree}")
    if reached != wanted:
        raise CheckFailed(f"the new series of {at.name} does not lead to its work tree", why=f"{reached}, not {wanted}")
    said = notes((old.dir / ORDER_FILE).read_text(encoding="utf-8"))
    above = {name: said.get(patch.name, ()) for name, patch in was.items()} | {"": said[""]}
    write(at.folder, patches, reached, above)
    raw = {patch.raw for patch in old.patches}
    return Written(
        folder=at.folder,
        tree=reached,
        kept=tuple(patch.name for patch in patches if patch.raw in raw),
        changed=tuple(patch.name for patch in patches if patch.raw not in raw),
        dropped=tuple(item for item in before if item not in ids.values()),
    )


def pinned(store: Store, upstream: Upstream, name: str) -> Upstream:
    """The upstream with the commit that its sdist names, else `unpinned`, and with its wheels.

    Args:
        store: holds the release.
        upstream: at the new release, with its sdist.
        name: of the upstream.
    """
    pin = releases.commit(store, name, upstream)
    names = [f"{pin.commit}:{path}" for path in _SAYS_COMMIT]
    texts = contents(git_of(store), names).values()
    commit = next((found[1].decode() for text in texts if (found := _COMMIT.search(text or b""))), UNPINNED)
    return msgspec.structs.replace(releases.wheels(upstream), commit=commit)


def stack(old: Stack, name: str, upstream: Upstream, path: Path) -> Stack:
    """Write a stack that has an upstream at another release.

    Args:
        old: the stack that it is made from.
        name: of the upstream.
        upstream: its new pin, with the folder of the new series.
        path: the recipe to write.

    Raises:
        BadInput: another stack is there already.
    """
    if path.exists() and path != old.path:
        raise BadInput(f"{shown(path)} is there", do="name another stack with --name")
    upstreams = {**old.upstreams, name: upstream}
    pins = " + ".join(f"{key} {one.release}" for key, one in upstreams.items())
    made = msgspec.structs.replace(old, name=path.stem, summary=pins, upstreams=upstreams)
    head = f"# {pins}, made from {old.name} by `invoke rebase --write`. Its locks are still those of {old.name}.\n"
    text = yaml.safe_dump(msgspec.to_builtins(made), sort_keys=False, width=120, allow_unicode=True)
    write_file(path, (head + text).encode())
    return load_stack(path)
