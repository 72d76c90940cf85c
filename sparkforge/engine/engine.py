"""What we ask of a container engine: build the one Dockerfile, hold images, run them.

Tags of images start with `localhost/`: buildah adds that prefix by itself, and Docker would ask a public registry for
a name without it. A container has the same port numbers inside and outside: buildah's has no network of its own, so a
caller picks one free port and gives it to the server and to `ports` alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sparkforge.core.errors import CheckFailed
from sparkforge.core.platforms import Platform
from sparkforge.core.proc import Done, run

PREFIX = "localhost/"


def full_tag(tag: str) -> str:
    """Tag as the engines store it: `localhost/` in front unless a registry is named, `:latest` behind."""
    first, slash, _ = tag.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        tag = PREFIX + tag
    return tag if ":" in tag.rpartition("/")[2] else f"{tag}:latest"


@dataclass(frozen=True)
class Able:
    """The verdict on an engine.

    Attributes:
        able: whether it built the proof.
        reason: the engine's name and version, or one line about why it does not work.
        version: of the engine, empty if it did not answer.
    """

    able: bool
    reason: str
    version: str = ""


@dataclass(frozen=True)
class Layer:
    """One layer of an image, lowest first in every list.

    Attributes:
        digest: sha256 of its uncompressed archive ("diff id"); equal content has an equal digest.
        made_by: the instruction that made it, as the engine recorded it.
        size: bytes of its content; None if the engine does not say.
    """

    digest: str
    made_by: str
    size: int | None


@dataclass(frozen=True)
class Mount:
    """A directory of the host, or a volume, inside a container.

    Attributes:
        source: on the host; a name without a slash is a volume's.
        target: in the container.
        read_only: whether the container may not write.
    """

    source: Path
    target: str
    read_only: bool = False

    @property
    def text(self) -> str:
        """As `-v` takes it."""
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")


@dataclass(frozen=True)
class Recipe:
    """The input of one build.

    Attributes:
        context: directory with everything that the Dockerfile reads.
        dockerfile: the Dockerfile.
        target: stage to build.
        tag: name of the image.
        platform: of the image; stages of the building machine say so themselves.
        args: build arguments.
        labels: labels of the image.
        network: whether its RUN steps may reach the network.
    """

    context: Path
    dockerfile: Path
    target: str
    tag: str
    platform: Platform
    args: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    network: bool = False


@dataclass(frozen=True)
class Launch:
    """One run of an image.

    Attributes:
        image: tag or id.
        command: words after the image's name; the image's entrypoint gets them.
        env: variables beyond those of the image.
        user: `uid:gid`; None is the image's own.
        mounts: directories of the host.
        ports: ports that the server listens on, published under the same numbers.
        publish: address of this machine on which they are published.
        entrypoint: a program in place of the image's entrypoint.
        gpus: give the container the machine's GPUs.
        network: `none` cuts it off, where the engine can; `host` is this machine's; None is the engine's own choice.
        ipc: `host` for this machine's shared memory; None is private.
        shm: size of a private /dev/shm as the engine takes it.
        devices: device nodes.
        capabilities: that are added.
        ulimits: limits by name, -1 for none.
        name: of the container; None makes one up.
    """

    image: str
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    mounts: Sequence[Mount] = ()
    ports: Sequence[int] = ()
    publish: str = "127.0.0.1"
    entrypoint: str | None = None
    gpus: bool = False
    network: str | None = None
    ipc: str | None = None
    shm: str | None = "2g"
    devices: Sequence[str] = ()
    capabilities: Sequence[str] = ()
    ulimits: Mapping[str, int] = field(default_factory=dict)
    name: str | None = None


class Container(Protocol):
    """A run that has not been removed yet."""

    @property
    def id(self) -> str:
        """The engine's name for it."""

    def alive(self) -> bool:
        """Whether its first process still runs."""

    def logs(self) -> str:
        """Everything that it wrote so far, both streams."""

    def stop(self, *, grace: float = 30.0) -> int:
        """SIGTERM, and SIGKILL after `grace` seconds; the exit status (137 or -9 when it had to be killed)."""

    def wait(self, *, timeout: float | None = None) -> int:
        """Exit status once it has ended; CheckFailed when it does not within `timeout` seconds."""

    def exec(self, command: Sequence[str], *, check: bool = True) -> Done:
        """Run another command in it, as its own user."""

    def remove(self) -> None:
        """Remove it, ended or not. Twice is no error."""


class Engine(Protocol):
    """One container engine of this machine."""

    @property
    def name(self) -> str:
        """`docker` or `buildah`."""

    @property
    def program(self) -> str:
        """Path of the program that is called."""

    def answer(self) -> str | None:
        """What identifies the engine that answers now; None if none does."""

    def prove(self) -> Able:
        """Try to build a file with one `RUN --mount`, which every image of ours needs."""

    def root(self) -> Path:
        """Directory of its images, for disk needs."""

    def build(self, recipe: Recipe) -> str:
        """Build and tag an image; its id. On failure (CheckFailed) the tag keeps the old image.

        On success the old image is removed, unless it has another name or a container.
        """

    def has(self, tag: str) -> bool:
        """Whether the image is here."""

    def find(self, labels: Mapping[str, str]) -> list[str]:
        """Tags of the images with these labels, the newest first."""

    def image_id(self, tag: str) -> str:
        """`sha256:...` of its configuration. CheckFailed where there is no such image."""

    def labels(self, tag: str) -> dict[str, str]:
        """Labels of an image."""

    def config(self, tag: str) -> dict[str, object]:
        """Its run configuration in Docker's spelling: Env, User, Entrypoint, Cmd, Healthcheck."""

    def layers(self, tag: str) -> list[Layer]:
        """Layers of an image, lowest first."""

    def load(self, archive: Path) -> None:
        """Take in an image archive as `archive.write` makes it."""

    def pull(self, reference: str, platform: Platform) -> str:
        """Fetch an image from its registry; the digest `sha256:...` that was pulled."""

    def tag(self, image: str, tag: str) -> None:
        """Give an image another name."""

    def run(self, launch: Launch) -> Container:
        """Start a container and return at once."""

    def read(self, tag: str, path: str) -> bytes:
        """Content of one file of an image, without running anything in it."""

    def untag(self, tag: str) -> None:
        """Remove a name, and the image with its last one. A name that is not there is no error."""


def streamed(words: Sequence[str], *, name: str, env: Mapping[str, str] | None = None) -> None:
    """Run a build and show its lines on standard error; standard output is for results.

    Raises:
        CheckFailed: the build failed.
    """
    done = run(["sh", "-c", 'exec "$@" >&2', "sh", *words], env=env, stream=True, check=False)
    if done.code:
        raise CheckFailed(
            f"{name} could not build the image",
            why=f"it ended with status {done.code}; its log is above",
            do=f"to see the command: SPARKFORGE_TRACE=1; to try another engine: --engine {OTHER[name]}",
        )


OTHER = {"docker": "buildah", "buildah": "docker"}


def no_image(tag: str, engine: str) -> CheckFailed:
    """The error for an image that is not there."""
    return CheckFailed(f"there is no image {tag}", why=f"{engine} holds none of that name", do="invoke build")
