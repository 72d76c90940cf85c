"""The package index that the user's pip is configured with: what it is, how uv spells it, and what it lists.

No index is named in this project: what pip would use is used, its built-in default included.
"""

from __future__ import annotations

import ast
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from sparkforge.core import proc
from sparkforge.core.errors import EnvironmentLacks

if TYPE_CHECKING:
    from unearth import Link
    from unearth.collector import IndexPage
    from unearth.fetchers import Fetcher

_DEFAULT = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


@dataclass(frozen=True)
class Index:
    """Where packages come from.

    Attributes:
        url: simple index.
        extra: further indexes.
        find_links: folders or pages of files.
        cert: CA bundle, or "".
    """

    url: str
    extra: tuple[str, ...]
    find_links: tuple[str, ...]
    cert: str

    def uv_environment(self) -> dict[str, str]:
        """Environment that makes uv use this index and no configuration of its own."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
        env |= {"UV_DEFAULT_INDEX": self.url, "UV_NO_CONFIG": "1", "UV_INDEX_STRATEGY": "unsafe-best-match"}
        if self.extra:
            env["UV_INDEX"] = " ".join(self.extra)
        if self.find_links:
            env["UV_FIND_LINKS"] = ",".join(self.find_links)
        if self.cert:
            env["SSL_CERT_FILE"] = self.cert
        return env


@cache
def configured() -> Index:
    """Index of this interpreter's pip: environment over user and site configuration over pip's default.

    Raises:
        EnvironmentLacks: pip does not answer.
    """
    said = proc.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        error=EnvironmentLacks,
        do=f"{sys.executable} -m ensurepip",
    ).text
    from_files: dict[str, str] = {}
    from_environment: dict[str, str] = {}
    for line in said.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in ("global", "download", "install", ":env:"):
            (from_environment if section == ":env:" else from_files)[key] = str(ast.literal_eval(value))
    merged = from_files | from_environment
    url = merged.get("index-url") or proc.run([sys.executable, "-c", _DEFAULT], error=EnvironmentLacks).text
    return Index(
        url=url,
        extra=tuple(merged.get("extra-index-url", "").split()),
        find_links=tuple(merged.get("find-links", "").split()),
        cert=merged.get("cert", ""),
    )


def listed(index: Index, package: str, part: str) -> list[Link]:
    """Files that an index lists for a distribution and whose anchor holds a text, such as a version.

    A page lists every file of every release, up to ten thousand of them: what does not hold the text is left out
    before it is parsed, which is a tenth of the time.

    Raises:
        EnvironmentLacks: the index does not answer.
    """
    from unearth.collector import parse_html_page, parse_json_response  # noqa: PLC0415  only where something is fetched

    found = [link for link in _local(index) if part in link.filename]
    for page in _pages(index, package):
        if "json" in page.content_type:
            found += parse_json_response(page)
            continue
        head, *anchors = page.content.split(b"<a ")
        kept = [anchor for anchor in anchors if part.encode() in anchor]
        found += parse_html_page(page._replace(content=b"<a ".join([head, *kept])))
    return found


@cache
def _client(index: Index) -> Fetcher:
    """One client for all requests of a process, with the credentials of the index URLs."""
    from unearth import PackageFinder  # noqa: PLC0415  as above

    return PackageFinder(index_urls=[index.url, *index.extra]).session


@cache
def _local(index: Index) -> tuple[Link, ...]:
    """Files of pip's find-links."""
    from unearth import Link  # noqa: PLC0415  as above
    from unearth.collector import collect_links_from_location  # noqa: PLC0415  as above

    links: list[Link] = []
    for place in index.find_links:
        url = place if "://" in place else Path(place).absolute().as_uri()
        links += collect_links_from_location(_client(index), Link(url), expand=True)
    return tuple(links)


@cache
def _pages(index: Index, package: str) -> tuple[IndexPage, ...]:
    """The pages of a distribution, asked for once in a process."""
    from unearth import Link  # noqa: PLC0415  as above
    from unearth.collector import LinkCollectError, fetch_page  # noqa: PLC0415  as above

    found, refused = [], []
    for url in (index.url, *index.extra):
        page = f"{url.rstrip('/')}/{canonicalize_name(package)}/"
        try:
            found.append(fetch_page(_client(index), Link(f"{page}index.html" if url.startswith("file:") else page)))
        except (LinkCollectError, OSError) as failed:  # one index of several need not know the distribution
            refused.append(str(failed))
        except Exception as failed:  # its HTTP library is its own; whatever it says, the index did not answer
            raise EnvironmentLacks(
                "the package index does not answer", why=f"{package}: {failed}", do="pip config list"
            ) from failed
    if not found:
        raise EnvironmentLacks(
            f"the package index does not have {package}", why="; ".join(refused), do="pip config list"
        )
    return tuple(found)
