"""The bare repository of the store: pins, trees and blobs, and whether it is undamaged."""

from __future__ import annotations

from sparkforge.core.errors import CheckFailed
from sparkforge.core.integrity import files_below, stamp_of
from sparkforge.core.store import Store, write_file
from sparkforge.git.repository import Git


def git_of(store: Store) -> Git:
    """The bare repository of pins, trees and blobs; created if needed."""
    with store.lock("git-init"):
        return Git.init_bare(store.root / "git")


def sound_git(store: Store, git: Git) -> None:
    """Check the bare store repository; a pack is read again only if it changed since it was last checked.

    Raises:
        CheckFailed: an object is damaged.
    """
    objects = git.git_dir / "objects"
    stamp = store.root / "git.stamp"
    checked = set(stamp.read_text().split()) if stamp.is_file() else set()
    now = stamp_of(files_below(objects))
    if now in checked:
        return
    packs = {stamp_of([index, index.with_suffix(".pack")]): index for index in sorted(objects.glob("pack/*.idx"))}
    commands = [("verify-pack", index) for mark, index in packs.items() if mark not in checked]
    fsck = ("fsck", "--no-dangling", "--no-progress")
    # Then what objects refer to, and the loose objects themselves.
    for words in (*commands, (*fsck, "--full", "--connectivity-only"), (*fsck, "--no-full")):
        one = git.done(*words, check=False)
        if one.code:
            said = (one.err or one.out).decode(errors="replace").strip().splitlines()
            why = "; ".join(said[:3]) or f"git fsck ended with status {one.code}"
            do = f"rm -r {git.git_dir}, then run again to import the pins from the verified sdists"
            raise CheckFailed("the store's git repository is damaged", why=why, do=do)
    write_file(stamp, "\n".join([now, *packs]).encode())
