"""Lay an overlay over an installed package, or take it off again.

This is one file with the standard library only, because it also runs as a script inside an image stage, where nothing
of ours is installed: `python3 apply.py --site SITE_PACKAGES --overlay DIR [--out DIR]`, or `--revert`.

It guarantees: every file that it replaces or deletes was byte for byte the pin's, and all were checked before the first
is written. A file is replaced by renaming a new one over it, never written in place, since files of a virtual
environment may be hard links into an installer's cache. RECORD is correct afterwards. Bytecode is compiled with checked
hashes, so an edit takes effect whatever its size and time. The originals are kept beside the metadata: reverting gives
back the same bytes, another overlay first reverts this one, and the next run rolls back what a killed run left. A layer
(`--out`) has no originals and cannot be reverted: they are in the layer below. Exit status: 0 done, 1 refused, 2 wrong
usage or a broken overlay, 3 this machine cannot do it.
"""

from __future__ import annotations

import argparse
import base64
import csv
import fcntl
import hashlib
import io
import json
import os
import py_compile
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

STATE = "sparkforge-overlay"  # in the .dist-info: the journal or the state, and the originals
SHADOWS = {"flashinfer-jit-cache": "its compiled modules are loaded instead of the patched sources"}
_SHOWN = 10


class Refused(Exception):  # noqa: N818  the word that users read
    """A refusal: what, why, what to do, and the exit status."""

    def __init__(self, what: str, *, why: str, do: str = "", status: int = 1) -> None:
        super().__init__(f"{what}\n  why: {why}" + (f"\n  do:  {do}" if do else ""))
        self.what, self.why, self.do, self.status = what, why, do, status


@dataclass(frozen=True)
class LaidFile:
    """One file: path in site-packages, operation, hashes, mode, the distribution that gets it, new content."""

    path: str
    op: str
    pin_sha256: str | None
    sha256: str | None
    mode: int
    only: str
    content: bytes | None = None


@dataclass(frozen=True)
class Installed:
    """An installed distribution: site-packages to read, root to write, metadata folder, name."""

    site: Path
    root: Path
    info: Path
    name: str

    @property
    def layer(self) -> bool:
        """Files go to a separate root, which is copied over `site` later."""
        return self.root != self.site

    @property
    def state(self) -> Path:
        """Folder of the journal and the originals."""
        return self.root / self.info.name / STATE

    def saved(self, name: str) -> dict[str, Any] | None:
        """The journal of an unfinished run, or the state of a finished one."""
        file = self.state / name
        return json.loads(file.read_text()) if file.is_file() else None


def read_overlay(folder: Path) -> tuple[dict[str, Any], str, list[LaidFile]]:
    """Manifest of an overlay, its hash, and its files; Refused if a file does not match the manifest."""
    try:
        raw = (folder / "manifest.json").read_bytes()
        said: dict[str, Any] = json.loads(raw)
        listed = [LaidFile(**entry) for entry in said["entries"]]
    except (OSError, ValueError, KeyError, TypeError) as broken:
        raise Refused("this is not an overlay", why=f"{folder}: {broken}", status=2) from broken
    entries = []
    for entry in listed:
        if entry.op not in {"replace", "add", "delete"} or {"..", ""} & set(entry.path.split("/")):
            raise Refused("this overlay is broken", why=f"{folder}: {entry.op} {entry.path}", status=2)
        file = folder / "files" / entry.path
        content = None if entry.op == "delete" else file.read_bytes() if file.is_file() else b""
        if content is not None and _sha(content) != entry.sha256:
            why = f"{file}: sha256 {_sha(content)}, the manifest says {entry.sha256}"
            raise Refused("a file of the overlay is not what its manifest says", why=why, status=2)
        entries.append(replace(entry, content=content))
    return said, _sha(raw), entries


def find(site: Path, said: Mapping[str, Any], out: Path | None = None) -> Installed:
    """The distribution in `site` that an overlay is for: the pin's own or a stand-in.

    Refused if there is none, if both are there, if the release differs, or if something shadows the sources.
    """
    installed = dict(_distributions(site))
    for shadow, why in SHADOWS.items():
        if shadow in installed or (site / shadow.replace("-", "_")).is_dir():
            raise Refused(f"{shadow} is installed", why=why, do=f"pip uninstall {shadow}")
    wanted = {one["distribution"]: one["release"] for one in (*said["stand_ins"], said)}
    here = [name for name in wanted if name in installed]
    if len(here) != 1:
        why = f"{' and '.join(here)} are both" if here else f"no {' or '.join(wanted)} is"
        raise Refused(f"the overlay of {said['upstream']} fits no single package", why=f"{why} in {site}")
    info, version = installed[here[0]]
    if version != wanted[here[0]]:
        why = f"{info} is {version}, the overlay is for {wanted[here[0]]}"
        raise Refused(f"{here[0]} {version} is not the pin's release", why=why, do="install the pinned wheel")
    return Installed(site, out or site, info, here[0])


def _distributions(site: Path) -> Iterator[tuple[str, tuple[Path, str]]]:
    for info in sorted(site.glob("*.dist-info")):
        # A .dist-info without RECORD is not an installation but the alias that this program writes.
        if (info / "METADATA").is_file() and (info / "RECORD").is_file():
            head = (info / "METADATA").read_text(errors="replace").partition("\n\n")[0]
            fields = dict(re.findall(r"^(Name|Version): *(\S+)", head, re.MULTILINE))
            yield re.sub(r"[-_.]+", "-", fields.get("Name", "")).lower(), (info, fields.get("Version", ""))


def plan(place: Installed, said: Mapping[str, Any], entries: Sequence[LaidFile]) -> list[LaidFile]:
    """Files to write; Refused if some are not the pin's, with both hashes of the first ten."""
    accepted = {one["distribution"]: one["accepted"] for one in said["stand_ins"]}.get(place.name, {})
    full = [entry for entry in entries if entry.only in {"", place.name}]
    gone = [entry.path for entry in full if entry.op == "delete"]
    if place.layer and (gone or (place.info / STATE).exists()):
        why = f"it cannot delete {', '.join(gone)}" if gone else f"{place.info / STATE} is there: --revert it first"
        raise Refused("a layer cannot be made", why=why, do="apply in place: no --out")
    wrong = []
    for entry in full:
        found = _pin_content(place, entry.path)
        sha = None if found is None else _sha(found)
        if sha not in {entry.pin_sha256, accepted.get(entry.path, entry.pin_sha256)}:
            wrong.append(f"{entry.path}: sha256 {sha}, the pin has {entry.pin_sha256}")
    if wrong:
        why = "\n       ".join(wrong[:_SHOWN] + [f"and {len(wrong) - _SHOWN} more"] * (len(wrong) > _SHOWN))
        do = f"reinstall the pinned wheel of {place.name}; for a stand-in, accept the file's hash"
        raise Refused(f"{place.name} in {place.site} is not what the overlay was made for", why=why, do=do)
    return full


def _pin_content(place: Installed, path: str) -> bytes | None:
    """What the wheel installed at `path`, even if an overlay is there now."""
    for entry in ((not place.layer and place.saved("state.json")) or {}).get("entries", []):
        if entry["path"] == path:
            return None if entry["op"] == "add" else (place.state / "originals" / path).read_bytes()
    file = place.site / path
    if file.is_symlink() or not file.resolve().is_relative_to(place.site.resolve()):
        raise Refused("a file to be replaced is reached through a link", why=str(file))
    return file.read_bytes() if file.is_file() else None


def apply(site: Path, folder: Path, *, out: Path | None = None) -> str:
    """Lay the overlay in `folder` over the package in `site`, or write it below `out` as a layer; says what was done.

    If Refused, nothing was changed.
    """
    said, digest, entries = read_overlay(folder)
    place = find(site, said, out)
    head = f"{said['upstream']}: tree {said['tree'][:12]} over {place.name} {said['release']}"
    with _held(place):
        _recover(place)
        if (state := place.saved("state.json")) is not None:
            if _as_left(place, state)["digest"] == digest:
                return f"{head}: nothing to do"
            _as_left(place, state, originals=True)
        full = plan(place, said, entries)
        if state is not None:
            _roll_back(place, state)
        try:
            _write(place, {"digest": digest, "tree": said["tree"]}, full)
        except BaseException:
            _recover(place)
            raise
    words = {"replace": "replaced", "delete": "deleted", "add": "added"}
    return f"{head}: {', '.join(f'{sum(e.op == op for e in full)} {word}' for op, word in words.items())}"


def check(site: Path, folder: Path) -> None:
    """Refuse what `apply` would refuse, without writing; it leaves an unfinished run to `apply`."""
    said, digest, entries = read_overlay(folder)
    place = find(site, said)
    state = place.saved("state.json") or {"entries": [], "digest": ""}
    if place.saved("journal.json") is None and _as_left(place, state)["digest"] != digest:
        _as_left(place, state, originals=True)
        plan(place, said, entries)


def revert(site: Path) -> list[str]:
    """Take every overlay in `site` off again; a line for each.

    Refused if a file is not what the overlay wrote, or the overlay is a layer; that overlay stays as it is.
    """
    lines = []
    for state in sorted(site.glob(f"*.dist-info/{STATE}")):
        place = Installed(site, site, state.parent, state.parent.name.partition("-")[0])
        with _held(place):
            _recover(place)
            if (saved := place.saved("state.json")) is not None:
                _roll_back(place, _as_left(place, saved, originals=True))
        lines.append(f"{place.name}: as its wheel installed it")
    return lines or ["no overlay here: nothing to do"]


@contextmanager
def _held(place: Installed) -> Iterator[None]:
    """Lock a distribution by its metadata folder, so that no file is left behind."""
    (place.root / place.info.name).mkdir(parents=True, exist_ok=True)
    handle = os.open(place.root / place.info.name, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _recover(place: Installed) -> None:
    """Undo an unfinished run: with a journal, some files may be replaced, so all go back."""
    if (journal := place.saved("journal.json")) is not None:
        _roll_back(place, journal)
    elif place.state.exists() and not (place.state / "state.json").exists():
        shutil.rmtree(place.state)  # killed while saving originals: no file of the package was changed


def _as_left(place: Installed, state: Mapping[str, Any], *, originals: bool = False) -> Mapping[str, Any]:
    """The state, unless a file was edited since, which is never overwritten; or the originals of a layer are wanted."""
    do = f"keep your edit elsewhere, then reinstall the pinned wheel of {place.name}"
    if originals and state.get("layer") and not place.layer:
        raise Refused(f"the overlay of {place.name} is a layer", why="its originals are in the layer below", do=do)
    for entry in state["entries"]:
        file = place.root / entry["path"]
        found = _sha(file.read_bytes()) if file.is_file() else None
        if found != entry["sha256"]:
            why = f"{file}: sha256 {found}, the overlay wrote {entry['sha256']}"
            raise Refused(f"{entry['path']} was changed after the overlay was applied", why=why, do=do)
    return state


def _write(place: Installed, said: Mapping[str, Any], entries: Sequence[LaidFile]) -> None:
    own = f"{place.info.name}/{STATE}"
    record = (place.info / "RECORD").read_bytes()
    saved = {f"originals/{e.path}": place.site / e.path for e in entries if e.op != "add"}
    saved = {} if place.layer else {"RECORD": place.info / "RECORD", **saved}
    for name, source in saved.items():
        (place.state / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, place.state / name)  # with its time: bytecode of the original stays valid
    listed = [{k: v for k, v in vars(entry).items() if k != "content"} for entry in entries]
    made = sorted({str(p) for e in entries for p in Path(e.path).parents if not (place.site / p).is_dir()})
    journal = json.dumps({**said, "layer": place.layer, "made": made, "entries": listed}, indent=1)
    _put(place.state / "journal.json", f"{journal}\n".encode(), 0o644)
    for entry in entries:
        if entry.content is None:
            (place.root / entry.path).unlink()
        else:
            _put(place.root / entry.path, entry.content, entry.mode)
    _drop_bytecode(place, [entry.path for entry in entries])
    _compile(place, [entry.path for entry in entries if entry.content is not None])
    kept = {f"{own}/{name}": (place.state / name).read_bytes() for name in saved}
    kept |= {f"{own}/state.json": b""}  # its row has no hash, like RECORD's own
    _put(place.root / place.info.name / "RECORD", _record(record, entries, kept), 0o644)
    (place.state / "journal.json").rename(place.state / "state.json")


def _record(record: bytes, entries: Sequence[LaidFile], kept: Mapping[str, bytes]) -> bytes:
    """RECORD after the overlay; it lists what we keep beside the metadata, so that uninstalling removes it."""
    rows = {row[0]: row for row in csv.reader(io.StringIO(record.decode())) if row}
    for path in [path for path in rows if any(e.content is None and _is_of(path, e.path) for e in entries)]:
        del rows[path]
    for path, content in [(e.path, e.content) for e in entries if e.content is not None] + [*kept.items()]:
        hashed = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows[path] = [path, f"sha256={hashed}", str(len(content))] if content or path not in kept else [path, "", ""]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows.values())
    return text.getvalue().encode()


def _roll_back(place: Installed, state: Mapping[str, Any]) -> None:
    """Give every file back. If killed, it can run again: the journal stays to the end, each step can be repeated."""
    if (place.state / "state.json").exists():
        (place.state / "state.json").rename(place.state / "journal.json")
    for entry in state["entries"]:
        file, original = place.root / entry["path"], place.state / "originals" / entry["path"]
        _beside(file).unlink(missing_ok=True)
        if entry["op"] == "add" or place.layer:
            file.unlink(missing_ok=True)
        elif original.is_file():
            original.replace(file)
    _drop_bytecode(place, [entry["path"] for entry in state["entries"]])
    for folder in sorted(state["made"], reverse=True):
        _drop_if_empty(place.root / folder)
    record = place.root / place.info.name / "RECORD"
    _beside(record).unlink(missing_ok=True)
    if place.layer:
        record.unlink(missing_ok=True)
    elif (place.state / "RECORD").is_file():
        _put(record, (place.state / "RECORD").read_bytes(), 0o644)
    shutil.rmtree(place.state)


def _beside(file: Path) -> Path:
    return file.with_name(f".{file.name}.sparkforge")


def _put(file: Path, content: bytes, mode: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(file)
    beside.unlink(missing_ok=True)
    beside.write_bytes(content)
    beside.chmod(mode)
    beside.replace(file)


def _is_of(path: str, source: str) -> bool:
    """Whether `path` is `source` or its bytecode, of any Python and level, half written or not."""
    file, module = Path(path), Path(source)
    cached = file.parent == module.parent / "__pycache__" and file.name.startswith(f"{module.stem}.")
    return path == source or (module.suffix == ".py" and ".pyc" in file.name and (cached or path == f"{source}c"))


def _bytecode(root: Path, source: str) -> list[Path]:
    folder = (root / source).parent
    files = [*folder.glob("__pycache__/*.pyc*"), *folder.glob("*.pyc")]
    return [file for file in files if _is_of(file.relative_to(root).as_posix(), source)]


def _drop_bytecode(place: Installed, sources: Sequence[str]) -> None:
    for source in sources:
        for file in _bytecode(place.root, source):
            file.unlink()
        _drop_if_empty((place.root / source).parent / "__pycache__")


def _drop_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _compile(place: Installed, paths: Sequence[str]) -> None:
    """Compile if `site` belongs to this Python; otherwise modules get their bytecode on import."""
    modules = [path for path in paths if path.endswith(".py")]
    said = re.fullmatch(r"python3\.(\d+)", place.site.resolve().parent.name)
    if said and int(said[1]) != sys.version_info.minor:
        stale = [file for path in modules for file in _bytecode(place.site, path)]
        if stale and place.layer:
            why, do = f"{stale[0]} would stay in use below the layer", f"run this with python3.{said[1]}"
            raise Refused("stale bytecode cannot be replaced", why=why, do=do, status=3)
        return
    for path in modules:
        file, mode = place.root / path, py_compile.PycInvalidationMode.CHECKED_HASH
        try:
            py_compile.compile(str(file), dfile=str(place.site / path), doraise=True, invalidation_mode=mode)
        except py_compile.PyCompileError as bad:
            raise Refused("a module of the overlay does not compile", why=bad.msg.strip()) from bad


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(words: list[str] | None = None) -> int:
    """Run as a script; returns the exit status."""
    parser = argparse.ArgumentParser(description="Lay an overlay over an installed package, or take it off.")
    parser.add_argument("--site", type=Path, required=True, help="a site-packages directory")
    parser.add_argument("--overlay", type=Path, help="directory with manifest.json and files/")
    parser.add_argument("--out", type=Path, help="write the new files here instead, as a layer")
    parser.add_argument("--revert", action="store_true", help="take every overlay in SITE off")
    said = parser.parse_args(words)
    if said.revert == bool(said.overlay) or (said.revert and said.out):
        parser.error("either --overlay DIR [--out DIR] or --revert")
    try:
        print("\n".join(revert(said.site) if said.revert else [apply(said.site, said.overlay, out=said.out)]))
    except (Refused, OSError) as bad:
        refused = bad if isinstance(bad, Refused) else Refused("cannot write the overlay", why=str(bad), status=3)
        print(refused, file=sys.stderr)
        return refused.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
