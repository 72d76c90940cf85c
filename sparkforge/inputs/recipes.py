"""Recipes: what to build, read from YAML into strict, frozen values.

An unknown or duplicate key, a missing hash or a wrong type is one error that names the file and the key.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import yaml

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import ROOT, STACKS, shown
from sparkforge.core.platforms import OciPlatform, Platform

UNPINNED = "unpinned"

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$", description="64 hex digits")]
Commit = Annotated[str, msgspec.Meta(pattern=r"^(unpinned|[0-9a-f]{40})$", description="a commit or `unpinned`")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^(unpinned|sha256:[0-9a-f]{64})$", description="a digest or `unpinned`")]
Target = Literal["serve", "cpu"]
T = TypeVar("T")


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a package index, by exact name and content.

    Attributes:
        name: file name on the index.
        sha256: hex digest of its content.
    """

    name: str
    sha256: Sha256


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from", "target": "to"}):
    """Where a folder of the tree stands in site-packages; both end in `/`."""

    source: str
    target: str


class Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another build of the same release: its distribution and its wheels."""

    package: str
    wheels: dict[OciPlatform, File]


class Upstream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pin of one project that we patch, and where its series stands.

    Attributes:
        package: distribution name on the index.
        release: its version.
        git: URL of its repository, for provenance and for rebases.
        commit: the commit that the sdist was made from.
        sdist: the source; its tree is the pin.
        wheels: the published build for each platform.
        series: folder of the patches, relative to the checkout.
        overlay: which folders of the tree the wheel carries, and where.
        cpu: a build of the same release that runs without a GPU.
    """

    package: str
    release: str
    git: str
    commit: Commit
    sdist: File
    wheels: dict[OciPlatform, File]
    series: str
    overlay: tuple[Mapping, ...]
    cpu: Build | None = None

    def build(self, target: Target) -> Build:
        """Distribution and wheels that a target installs."""
        if target == "cpu" and self.cpu is not None:
            return self.cpu
        return Build(self.package, self.wheels)


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an image stands on.

    Attributes:
        python: MAJOR.MINOR of its system Python.
        glibc: its C library as uv spells it, "2_36".
        image: reference in a registry; None where the base is made on the building machine.
        digest: of that image, or `unpinned`.
    """

    python: str
    glibc: str
    image: str | None = None
    digest: Digest = UNPINNED


class Stack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that one image is made from.

    Attributes:
        name: its name, equal to the file's.
        summary: one line for people.
        upstreams: the projects that are patched, in the order of installation.
        kernels: kernels of ours that the image carries.
        archs: architectures that this stack was verified for.
        bases: flavors of base image.
        locks: folder of the runtime locks, relative to the checkout.
    """

    name: str
    summary: str
    upstreams: dict[str, Upstream]
    kernels: tuple[str, ...]
    archs: tuple[str, ...]
    bases: dict[Literal["bootstrap", "ngc"], Base]
    locks: str

    @property
    def path(self) -> Path:
        """The recipe's own file."""
        return STACKS / f"{self.name}.yaml"

    def where(self, upstream: str, key: str) -> str:
        """The place of a key of an upstream, for messages."""
        return f"{shown(self.path)}: upstreams.{upstream}.{key}"

    def lock(self, target: Target, platform: Platform, python: str) -> Path:
        """Runtime lock of a target on a platform for a Python."""
        return ROOT / self.locks / f"{target}-{platform.debian}-py{python.replace('.', '')}.txt"


class _StrictLoader(yaml.CSafeLoader):  # of libyaml, which is in every wheel of PyYAML: a tenth of the time
    """YAML whose mappings may not name a key twice (YAML 1.2, 3.2.1.3; PyYAML lets the last one win)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is there twice, line {line}", None)
            seen.add(key)
        return super().construct_mapping(node, deep)


def load(path: Path, kind: type[T]) -> T:
    """Typed value of a YAML file.

    Raises:
        BadInput: not there, not YAML, or not of this type; names the file and the key.
    """
    try:
        raw = yaml.load(path.read_bytes(), Loader=_StrictLoader)  # noqa: S506  a subclass of SafeLoader
        return msgspec.convert(raw, kind, strict=True)
    except FileNotFoundError as lost:
        raise BadInput(f"{shown(path)} is not there") from lost
    except yaml.YAMLError as bad:
        said = getattr(bad, "problem", None) or str(bad).splitlines()[0]
        mark = getattr(bad, "problem_mark", None)
        at = f", line {mark.line + 1}" if mark else ""
        raise BadInput(f"{shown(path)} is not a valid recipe", why=f"{said}{at}") from bad
    except msgspec.ValidationError as bad:
        sentence, _, at = str(bad).partition(" - at ")
        key = at.strip("`").removeprefix("$").removeprefix(".") or "top level"
        raise BadInput(f"{shown(path)} is not a valid recipe", why=f"{key}: {sentence}") from bad


def load_stack(name: str | Path = "vllm-0.21") -> Stack:
    """Stack by name or by path.

    Raises:
        BadInput: unknown, or not valid.
    """
    path = Path(name) if str(name).endswith(".yaml") else STACKS / f"{name}.yaml"
    if not path.is_file() and path.parent == STACKS:
        known = ", ".join(sorted(file.stem for file in STACKS.glob("*.yaml")))
        raise BadInput(f"there is no stack {str(name)!r}", why=f"stacks: {known}")
    stack = load(path, Stack)
    if path.parent == STACKS and stack.name != path.stem:
        raise BadInput(f"{shown(path)} is not a valid recipe", why=f"name: {stack.name!r} differs from the file's name")
    for upstream, pin in stack.upstreams.items():
        for mapping in pin.overlay:
            if not (mapping.source.endswith("/") and mapping.target.endswith("/")):
                raise BadInput(
                    f"{shown(path)} is not a valid recipe",
                    why=f"upstreams.{upstream}.overlay: {mapping.source} -> {mapping.target}: folders end in /",
                )
        for file in (pin.sdist, *pin.wheels.values(), *(pin.cpu.wheels.values() if pin.cpu else ())):
            _of_release(path, upstream, pin.release, file)
    return stack


def _of_release(path: Path, upstream: str, release: str, file: File) -> None:
    if re.search(rf"-{re.escape(release)}-[0-9]+-", file.name):
        raise BadInput(
            f"{shown(path)} is not a valid recipe",
            why=f"upstreams.{upstream}: {file.name} carries a build number, so it is another build than the sdist's",
        )
    if f"-{release}" not in file.name:
        raise BadInput(
            f"{shown(path)} is not a valid recipe",
            why=f"upstreams.{upstream}: {file.name} is not of release {release}",
        )
