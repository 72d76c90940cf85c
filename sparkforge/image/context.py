"""The build context: one directory with all that the Dockerfile reads, and a digest for each part of it.

    tools/               uv's wheel, for the building machine
    runtime/lock.txt     runtime lock of the target, platform and Python, and runtime/wheels/ with its wheels
    upstream/lock.txt    the pinned upstream wheels by hash, and upstream/wheels/
    overlay/apply.py     and overlay/<upstream>/ with manifest.json and files/
    kernels/             what goes into site-packages
    aot/KEY/             FlashInfer's modules, and overlay/links/ with the link to them by the id of their tree
    images/lay, images/run (with profiles.json for it), manifest.json

Wheels are links to the store's files, not copies. A context stands at one place for each image, so that BuildKit
sends only what differs from the last build; it is assembled beside and renamed into place.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.hashing import key_of, sha256_file, sha256_tree
from sparkforge.core.paths import IMAGES
from sparkforge.core.store import Store, remove

_APPLY = Path(__file__).resolve().parent.parent / "overlay" / "apply.py"
_AOT = Path("flashinfer", "data", "aot")  # below site-packages; where F-01 looks
_AOT_NAME = 16  # digits of the key
_WHEEL = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl\Z")


@dataclass(frozen=True)
class ContextWheel:
    """A verified wheel in the store.

    Attributes:
        path: the file, under its own name or another.
        name: its exact file name.
        sha256: its hash.
    """

    path: Path
    name: str
    sha256: str


@dataclass(frozen=True)
class ModuleFolder:
    """FlashInfer's modules.

    They stand under a name of their content, so that their layer stays as it is when another tree leads to the same
    modules; the patched FlashInfer looks for them under its tree's id, which is a link that comes with the overlay.

    Attributes:
        folder: holds NAME/NAME.so for each.
        key: of their content.
        tree: git tree id of the sources.
    """

    folder: Path
    key: str
    tree: str


@dataclass(frozen=True)
class Context:
    """An assembled context.

    Attributes:
        path: the directory.
        digests: build arguments TOOLS, RUNTIME, UPSTREAM and OVERLAY: what each RUN reads.
        bytes: size of everything in it.
    """

    path: Path
    digests: Mapping[str, str]
    bytes: int


def assemble(
    store: Store,
    name: str,
    *,
    uv: ContextWheel,
    lock: Path,
    wheels: Sequence[ContextWheel],
    upstreams: Sequence[ContextWheel],
    overlays: Mapping[str, Path],
    kernels: Path,
    manifest: Mapping[str, Any],
    profiles: str = "{}\n",
    modules: ModuleFolder | None = None,
) -> Context:
    """Assemble the context of one image.

    Args:
        store: contexts stand in its `contexts/`.
        name: of the image, without its repository: one directory for each.
        uv: uv's wheel for the building machine.
        lock: the runtime lock, `name==version --hash=sha256:...` lines.
        wheels: every wheel that the lock needs on the image's platform.
        upstreams: the pinned wheels of the upstreams that the target installs.
        overlays: directory of the overlay of each of those upstreams, by name.
        kernels: directory to be copied into site-packages.
        manifest: content of /opt/sparkforge/manifest.json.
        profiles: content of /opt/sparkforge/profiles.json.
        modules: FlashInfer's; None for none.

    Raises:
        BadInput: an upstream's file name is not a wheel's.
        CheckFailed: something named is not there.
    """
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is None:
        raise BadInput(f"{name!r} cannot name a build context")
    with store.lock(f"contexts-{name}"):
        parent = store.root / "contexts"
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob(f".partial-{name}-*"):
            remove(left)
        beside = Path(tempfile.mkdtemp(prefix=f".partial-{name}-", dir=parent))
        beside.chmod(0o755)
        try:
            link_all(beside / "tools", [uv])
            link_all(beside / "runtime" / "wheels", wheels)
            shutil.copyfile(lock, beside / "runtime" / "lock.txt")
            link_all(beside / "upstream" / "wheels", upstreams)
            (beside / "upstream" / "lock.txt").write_text("".join(_pinned(wheel) for wheel in upstreams))
            (beside / "overlay").mkdir()
            shutil.copyfile(_APPLY, beside / "overlay" / "apply.py")
            for upstream, overlay in overlays.items():
                copy_tree(overlay, beside / "overlay" / upstream)
            copy_tree(kernels, beside / "kernels")
            for part in ("lay", "run"):
                copy_tree(IMAGES / part, beside / "images" / part)
            _write(beside / "images" / "run" / "profiles.json", profiles)
            _write(beside / "manifest.json", json.dumps(manifest, indent=1, sort_keys=True) + "\n")
            _lay_modules(beside, modules)
            final = parent / name
            if final.exists():
                remove(final)
            beside.rename(final)
        except BaseException:
            remove(beside)
            raise
    scripts = sha256_tree(IMAGES / "lay")
    digests = {
        "TOOLS": key_of(uv.sha256, scripts),
        "RUNTIME": key_of(sha256_file(lock), sorted(wheel.sha256 for wheel in wheels), uv.sha256, scripts),
        "UPSTREAM": key_of([wheel.sha256 for wheel in upstreams], uv.sha256, scripts),
        "OVERLAY": sha256_tree(final / "overlay"),
    }
    size = sum(file.stat().st_size for file in final.rglob("*") if file.is_file())
    return Context(final, {name: digest[:16] for name, digest in digests.items()}, size)


def _lay_modules(folder: Path, modules: ModuleFolder | None) -> None:
    (folder / "aot").mkdir()
    links = folder / "overlay" / "links"
    links.mkdir()
    if modules is None:
        return
    name = modules.key[:_AOT_NAME]
    for module in sorted(modules.folder.iterdir()):
        if module.is_dir():
            copy_tree(module, folder / "aot" / name / module.name)
    link = links / _AOT / modules.tree
    link.parent.mkdir(parents=True)
    link.symlink_to(name)


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o644)


def _pinned(wheel: ContextWheel) -> str:
    """The line of a lock that installs one exact wheel."""
    said = _WHEEL.match(wheel.name)
    if said is None:
        raise BadInput(f"{wheel.name} is not a wheel's file name")
    return f"{said['name'].replace('_', '-')}=={said['version']} --hash=sha256:{wheel.sha256}\n"


def link_all(folder: Path, wheels: Iterable[ContextWheel]) -> None:
    """Link wheels into a folder under their own names; copied where the store is on another file system."""
    folder.mkdir(parents=True)
    for wheel in wheels:
        if not wheel.path.is_file():
            raise CheckFailed(f"{wheel.name} is not in the store", why=str(wheel.path), do="invoke build")
        try:
            os.link(wheel.path, folder / wheel.name)
        except OSError:
            shutil.copy2(wheel.path, folder / wheel.name)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory with modes that any user of an image can read: 0755 what is executable, else 0644.

    Bytecode stays behind: it depends on who imported what here.
    """
    if not source.is_dir():
        raise CheckFailed("a part of the build context is not there", why=str(source))
    for folder, folders, names in os.walk(source):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        there = target / Path(folder).relative_to(source)
        there.mkdir(parents=True, exist_ok=True)
        there.chmod(0o755)
        for name in names:
            file = Path(folder, name)
            copied = there / name
            shutil.copyfile(file, copied)
            status = file.stat()
            copied.chmod(0o755 if status.st_mode & 0o100 else 0o644)
            os.utime(copied, ns=(status.st_atime_ns, status.st_mtime_ns))
