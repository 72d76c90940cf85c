"""Tiny real wheels, made by hand: what pip and uv accept, with a RECORD that is right."""

import base64
import hashlib
import zipfile
from pathlib import Path

from sparkforge.image.context import ContextWheel


def make(
    folder: Path, name: str, version: str, files: dict[str, bytes], *, tag="py3-none-any", scripts=()
) -> ContextWheel:
    info = f"{name}-{version}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    if scripts:
        lines = "".join(f"{line}\n" for line in scripts)
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}".encode()
    rows = "".join(f"{path},sha256={hashed(data)},{len(data)}\n" for path, data in content.items())
    content[f"{info}/RECORD"] = f"{rows}{info}/RECORD,,\n".encode()
    file = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path, data in content.items():
            entry = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
            # A wheel may forbid its programs to all but the owner, as NVIDIA's do.
            entry.external_attr = (0o100744 if path.endswith("/nvcc") else 0o100644) << 16
            archive.writestr(entry, data)
    return ContextWheel(file, file.name, hashlib.sha256(file.read_bytes()).hexdigest())


def hashed(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def uv(folder: Path) -> ContextWheel:
    """A wheel of the uv that is installed here, holding the one file that an image stage takes out of it."""
    from uv import find_uv_bin  # noqa: PLC0415  only where an engine is

    program = Path(find_uv_bin()).read_bytes()
    file = folder / "uv-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("uv-0.0.1.data/scripts/uv", program)
    return ContextWheel(file, file.name, hashlib.sha256(file.read_bytes()).hexdigest())
