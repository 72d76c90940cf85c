"""The store: results of steps, under the hash of their inputs; nothing in it is ever half written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from sparkforge.core.errors import BadInput, CheckFailed, EnvironmentLacks

_PARTIAL = ".partial-"


@dataclass(frozen=True)
class Store:
    """A directory of results (`<kind>/<key>/`), a bare git repository and verified downloads."""

    root: Path

    @classmethod
    def open(cls, root: Path | None = None) -> Store:
        """Store at `root`, else $SPARKFORGE_STORE, else in the user's cache directory; created if needed.

        Raises:
            EnvironmentLacks: it cannot be created.
        """
        if root is None:
            named = os.environ.get("SPARKFORGE_STORE")
            cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
            root = Path(named) if named else Path(cache) / "sparkforge"
        root = root.absolute()
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as refused:
            do = "set SPARKFORGE_STORE to a folder that you can write"
            raise EnvironmentLacks("the store cannot be created", why=str(refused), do=do) from refused
        return cls(root)

    def path(self, kind: str, key: str) -> Path:
        """Place of a result, whether it exists or not."""
        if not key or "/" in key or key.startswith("."):
            raise BadInput(f"{key!r} is not a key of the store")
        return self.root / kind / key

    def has(self, kind: str, key: str) -> bool:
        """Whether the store has that result."""
        return self.path(kind, key).exists()

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold a lock of the store; the kernel releases it when the process ends, even if it is killed."""
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{name}.lock"):
            yield

    @contextmanager
    def writing(self, kind: str, key: str) -> Iterator[Path]:
        """A temporary directory that becomes the result, or vanishes if the block raises.

        One process writes a key at a time. A second one waits; its result, which is equal, is then dropped.
        """
        final = self.path(kind, key)
        final.parent.mkdir(parents=True, exist_ok=True)
        with self.lock(f"{kind}-{key}"):
            for left in final.parent.glob(f"{_PARTIAL}{key}-*"):
                remove(left)
            beside = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{key}-", dir=final.parent))
            beside.chmod(0o755)
            try:
                yield beside
                if final.exists():
                    remove(beside)
                else:
                    beside.rename(final)
            except BaseException:
                remove(beside)
                raise

    def sweep(self) -> list[Path]:
        """Remove what killed runs left half written, and return it; what a living process has locked stays."""
        gone: list[Path] = []
        for left in self.root.glob(f"*/{_PARTIAL}*"):
            kind, key = left.parent.name, left.name.removeprefix(_PARTIAL).rpartition("-")[0]
            (self.root / "locks").mkdir(exist_ok=True)
            with suppress(TimeoutError), FileLock(self.root / "locks" / f"{kind}-{key}.lock", timeout=0):
                remove(left)
                gone.append(left)
        return gone


def remove(path: Path) -> None:
    """Remove a file or a directory with all below it, read-only directories included."""
    if path.is_dir() and not path.is_symlink():
        for folder, folders, _ in os.walk(path):
            for name in folders:
                below = Path(folder, name)
                if not below.is_symlink():
                    below.chmod(0o755)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_file(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file under another name and rename it, so that a reader sees the old or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(prefix=_PARTIAL, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).chmod(mode)
        Path(beside).replace(path)
    except OSError as failed:
        Path(beside).unlink(missing_ok=True)
        raise CheckFailed(f"cannot write {path}", why=str(failed)) from failed
