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
    """Check the bare store repository.

    Raises:
        CheckFailed: an object is damaged.
    """
    objects = git.git_dir / "objects"
    stamp = store.root / "git.stamp"
    now = stamp_of(files_below(objects))
    if stamp.is_file() and stamp.read_text() == now:
        return
    done = git.done("fsck", "--full", "--no-dangling", "--no-progress", "--connectivity-only", check=False)
    packs = [git.done("verify-pack", file, check=False) for file in sorted(objects.glob("pack/*.idx"))]
    loose = git.done("fsck", "--no-full", "--no-dangling", "--no-progress", check=False)
    for looked in (done, *packs, loose):
        if looked.code:
            said = (looked.err or looked.out).decode(errors="replace").strip().splitlines()
            raise CheckFailed(
                "the store's git repository is damaged",
                why="; ".join(said[:3]) or f"git fsck ended with status {looked.code}",
                do=f"rm -r {git.git_dir}, then run again to import the pins from the verified sdists",
            )
    write_file(stamp, now.encode())
