"""Files of the configured package index, by exact name and hash, into the store."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sparkforge.core.console import Meter
from sparkforge.core.errors import CheckFailed, EnvironmentLacks
from sparkforge.core.hashing import sha256_file, verify_file
from sparkforge.core.store import Store
from sparkforge.inputs.package_index import configured, listed
from sparkforge.inputs.recipes import File

if TYPE_CHECKING:
    import requests

_KIND = "files"
_CHUNK = 1 << 20
_AT_ONCE = 4
_LOOKS_AT_ONCE = 16
_TIMEOUT = (20, 120)


@dataclass(frozen=True)
class Wanted:
    """A file to have.

    Attributes:
        file: exact name and hash.
        package: distribution whose index page lists it.
        where: the recipe or lock line that asks for it, named in errors.
    """

    file: File
    package: str
    where: str


def path_of(store: Store, file: File) -> Path:
    """Where a file stands in the store, fetched or not."""
    return store.root / _KIND / file.sha256[:16] / file.name


def held(store: Store, wanted: Wanted) -> Path | None:
    """The file if the store has it, verified; None if not.

    Raises:
        CheckFailed: the store's copy has other content than the pinned one.
    """
    path = path_of(store, wanted.file)
    if not path.is_file():
        return None
    verify_file(path, wanted.file.sha256, where=wanted.where)
    return path


def fetch(store: Store, file: File, *, package: str, where: str = "a recipe") -> Path:
    """One file, from the store or from the index.

    Raises:
        CheckFailed: the content that came is not the pinned one; nothing is kept.
        EnvironmentLacks: the index does not answer or has no such file.
    """
    return fetch_all(store, [Wanted(file, package, where)])[0]


def fetch_all(store: Store, wanted: Iterable[Wanted], *, what: str = "downloading") -> list[Path]:
    """Files in the order asked for; the missing ones are fetched a few at a time.

    Raises:
        CheckFailed: as `fetch`.
        EnvironmentLacks: as `fetch`.
    """
    items = list(wanted)
    missing = [item for item in items if held(store, item) is None]
    if missing:
        links = locate(missing)
        size = sum(sizes(links).values())
        with Meter(f"{what} {len(missing)} files", size) as meter, ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(lambda item: _download(store, item, links[item.file], meter), missing):
                pass
    return [path_of(store, item.file) for item in items]


def locate(wanted: Iterable[Wanted]) -> dict[File, str]:
    """URL of each file on the configured index.

    Raises:
        EnvironmentLacks: the index does not answer, or has no file of that name.
    """
    items = list(wanted)
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        return dict(zip([item.file for item in items], pool.map(_locate, items), strict=True))


def sizes(links: dict[File, str]) -> dict[File, int]:
    """Bytes of each file, as the index says; 0 where it does not say."""

    def size(url: str) -> int:
        if url.startswith("file:"):
            return 0
        return int(session().head(url, allow_redirects=True, timeout=_TIMEOUT).headers.get("Content-Length", 0))

    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        return dict(zip(links, pool.map(size, links.values()), strict=True))


@cache
def session() -> requests.Session:
    """The process's HTTP session, with the CA bundle of pip's configuration; connections are kept and shared."""
    import requests  # noqa: PLC0415  a build that fetches nothing does not pay for it

    made = requests.Session()
    if configured().cert:
        made.verify = configured().cert
    made.mount("https://", requests.adapters.HTTPAdapter(max_retries=3, pool_maxsize=_LOOKS_AT_ONCE))
    return made


def _locate(item: Wanted) -> str:
    links = listed(configured(), item.package, item.file.name)
    for link in links:
        if link.filename == item.file.name:
            return str(link.normalized.split("#")[0])
    raise EnvironmentLacks(
        f"the package index has no {item.file.name}",
        why=f"{item.where}; no file of that name is listed for {item.package}",
        do="pip config list  # which index is used",
    )


def _download(store: Store, item: Wanted, url: str, meter: Meter) -> None:
    final = path_of(store, item.file)
    final.parent.mkdir(parents=True, exist_ok=True)
    with store.lock(f"file-{item.file.sha256[:16]}"):
        if final.is_file():
            return
        # What a killed run left is kept and continued: these files are up to half a gigabyte.
        partial = final.with_name(f".partial-{item.file.name}")
        _transfer(url, partial, meter)
        digest = sha256_file(partial)
        if digest != item.file.sha256:
            partial.unlink()
            raise CheckFailed(
                f"{item.file.name} from the package index is not the pinned file",
                why=f"sha256 {digest}, wanted {item.file.sha256} ({item.where}); nothing was kept",
            )
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(final)
        verify_file(final, item.file.sha256, where=item.where)


def _transfer(url: str, partial: Path, meter: Meter) -> None:
    import requests  # noqa: PLC0415  as above

    if url.startswith("file:"):
        from urllib.request import url2pathname  # noqa: PLC0415  only for local folders of files

        partial.write_bytes(Path(url2pathname(url.removeprefix("file:").removeprefix("//"))).read_bytes())
        return
    begun = partial.stat().st_size if partial.exists() else 0
    try:
        headers = {"Range": f"bytes={begun}-"} if begun else {}
        with session().get(url, stream=True, timeout=_TIMEOUT, headers=headers) as reply:
            if reply.status_code == requests.codes.requested_range_not_satisfiable:
                return  # it is all there; the hash decides
            reply.raise_for_status()
            resumed = reply.status_code == requests.codes.partial_content
            if resumed:
                meter.add(begun)
            with partial.open("ab" if resumed else "wb") as file:
                for chunk in reply.iter_content(_CHUNK):
                    file.write(chunk)
                    meter.add(len(chunk))
    except requests.RequestException as failed:
        raise EnvironmentLacks(
            f"{partial.name.removeprefix('.partial-')} could not be downloaded",
            why=str(failed),
            do="run the same again: it continues where it stopped",
        ) from failed
