"""The package index that the user's pip is configured with, read from pip and spelled for uv and unearth.

No index is named in this project: what pip would use is used, its built-in default included.
"""

from __future__ import annotations

import ast
import os
import sys
from dataclasses import dataclass
from functools import cache

from sparkforge import proc
from sparkforge.errors import EnvironmentLacks

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
