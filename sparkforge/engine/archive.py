"""An image archive made from a root file system: one layer, one configuration, the same bytes each time.

Both engines load the format that `docker save` writes (`manifest.json`, a configuration, one archive a layer),
and an image's id is the hash of its configuration, so a base made once has one id in every engine.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from sparkforge.core.platforms import Platform

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CREATED = "2025-01-01T00:00:00Z"  # a real time would make every build another image


def write(root: Path, archive: Path, *, tag: str, platform: Platform, made_by: str, labels: Mapping[str, str]) -> str:
    """Write the image archive of a root file system.

    Args:
        root: uncompressed tar of the file system.
        archive: file to write.
        tag: name that the image gets when it is loaded.
        platform: of the programs in it.
        made_by: what its history says.
        labels: of the image.

    Returns:
        The image's id, `sha256:...`.
    """
    with root.open("rb") as file:
        layer = hashlib.file_digest(file, "sha256").hexdigest()
    config = json.dumps(
        {
            "architecture": platform.debian,
            "os": "linux",
            "created": _CREATED,
            "config": {"Env": [_PATH], "Labels": dict(labels)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
            "history": [{"created": _CREATED, "created_by": made_by}],
        },
        sort_keys=True,
    ).encode()
    image = hashlib.sha256(config).hexdigest()
    manifest = [{"Config": f"{image}.json", "RepoTags": [tag], "Layers": [f"{layer}/layer.tar"]}]
    with tarfile.open(archive, "w") as out:
        _add(out, "manifest.json", json.dumps(manifest).encode())
        _add(out, f"{image}.json", config)
        info = tarfile.TarInfo(f"{layer}/layer.tar")
        info.size = root.stat().st_size
        with root.open("rb") as file:
            out.addfile(info, file)
    return f"sha256:{image}"


def _add(out: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    out.addfile(info, io.BytesIO(data))
