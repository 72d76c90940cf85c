"""Docker: its client builds, because the SDK knows no BuildKit; the SDK does everything else.

Several clients may stand on PATH, and the first may be unable to build: a client of Docker 23 or later leaves BuildKit
builds to its plugin `buildx` and fails without it, while an older one speaks to the daemon's own BuildKit. So a client
is a path here, not a name, and `choose` tries each. All of them, and the SDK, reach the same daemon: DOCKER_HOST, else
the current Docker context.
"""

from __future__ import annotations

import io
import os
import tarfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import requests

from sparkforge.core.errors import CheckFailed, EnvironmentLacks, SparkforgeError
from sparkforge.core.platforms import Platform
from sparkforge.core.proc import Done, quoted, run, tail
from sparkforge.engine import proof
from sparkforge.engine.engine import Able, Launch, Layer, Recipe, full_tag, no_image, streamed

_LAYERED = ("ADD", "COPY", "RUN", "WORKDIR")
_METADATA = (
    *("ARG", "CMD", "ENTRYPOINT", "ENV", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "SHELL"),
    *("STOPSIGNAL", "USER", "VOLUME"),
)
_SECONDS = 3600  # that one answer of the daemon may take: it loads archives of gigabytes
_CONFLICT = 409


def _sdk() -> Any:
    import docker  # noqa: PLC0415  a tenth of a second that machines without Docker do not pay

    return docker


@cache
def _connected(*_: str | None) -> Any:
    """One connection for all clients, as long as the environment names the same daemon."""
    return _sdk().from_env(timeout=_SECONDS, use_ssh_client=True)


@contextmanager
def _asking(what: str, do: str = "") -> Iterator[None]:
    """Turn errors of the SDK into ours.

    Raises:
        CheckFailed: the daemon refused.
        EnvironmentLacks: no daemon answers.
    """
    errors = _sdk().errors
    try:
        yield
    except errors.APIError as refused:
        raise CheckFailed(f"Docker could not {what}", why=str(refused.explanation or refused), do=do) from refused
    except (errors.DockerException, requests.RequestException) as lost:
        raise EnvironmentLacks("no Docker daemon answers", why=_reason(lost), do="invoke setup") from lost


def _reason(lost: BaseException) -> str:
    """The operating system's words, which stand at the end of a chain of four libraries; else the error itself."""
    cause: BaseException | None = lost
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(lost)


@dataclass(frozen=True)
class Docker:
    """A Docker client and the daemon that it reaches.

    Attributes:
        program: path of the client.
    """

    program: str
    name = "docker"

    @property
    def _daemon(self) -> Any:
        return _connected(os.environ.get("DOCKER_HOST"), os.environ.get("DOCKER_CONTEXT"))

    def answer(self) -> str | None:
        """Versions of the daemon that answers; None if none does."""
        try:
            return self._version()
        except EnvironmentLacks:
            return None

    def _version(self) -> str:
        with _asking("tell its version"):
            said = self._daemon.version()
        return f"{said['Version']} on Linux {said.get('KernelVersion', 'unknown')}"

    def prove(self) -> Able:
        """Build a file with one `RUN --mount`."""
        try:
            version = self._version().partition(" ")[0]
        except SparkforgeError as refused:
            return Able(able=False, reason=f"{self.program}: {refused.what}: {refused.why}")
        words = [self.program, "build", "--no-cache", "--tag", proof.TAG]
        refused_line = proof.attempt(lambda folder: run([*words, str(folder)], env=_environment()))
        self.untag(proof.TAG)
        if refused_line:
            return Able(able=False, reason=f"{self.program}: {refused_line}", version=version)
        return Able(able=True, reason=f"Docker {version} through {self.program}", version=version)

    def root(self) -> Path:
        """The daemon's data directory."""
        with _asking("tell where its data is"):
            return Path(self._daemon.info()["DockerRootDir"])

    def build(self, recipe: Recipe) -> str:
        """Build and tag an image; its id."""
        tag = full_tag(recipe.tag)
        words = [self.program, "build", "--file", str(recipe.dockerfile), "--target", recipe.target]
        words += ["--tag", tag, "--platform", recipe.platform.oci]
        if not recipe.network:
            words += ["--network", "none"]
        for name, value in sorted(recipe.args.items()):
            words += ["--build-arg", f"{name}={value}"]
        for name, value in sorted(recipe.labels.items()):
            words += ["--label", f"{name}={value}"]
        before = self.image_id(tag) if self.has(tag) else ""
        streamed([*words, str(recipe.context)], name=self.name, env=_environment())
        after = self.image_id(tag)
        if before and before != after:
            # Remove what had this name, unless it has another one or a container: only its own layers are lost.
            self._remove(before)
        return after

    def has(self, tag: str) -> bool:
        """Whether the image is here."""
        return self._find(tag) is not None

    def _find(self, tag: str) -> Any:
        with _asking(f"look for {tag}"):
            try:
                return self._daemon.images.get(full_tag(tag))
            except _sdk().errors.ImageNotFound:
                return None

    def _image(self, tag: str) -> Any:
        image = self._find(tag)
        if image is None:
            raise no_image(tag, self.name)
        return image

    def find(self, labels: Mapping[str, str]) -> list[str]:
        """Tags of the images with these labels, the newest first."""
        wanted = {"label": [f"{name}={value}" for name, value in labels.items()]}
        with _asking("list its images"):
            found = self._daemon.images.list(filters=wanted)
        found.sort(key=lambda image: str(image.attrs["Created"]), reverse=True)
        return [str(tag) for image in found for tag in image.tags]

    def image_id(self, tag: str) -> str:
        """`sha256:...` of the image's configuration."""
        return str(self._image(tag).id)

    def labels(self, tag: str) -> dict[str, str]:
        """Labels of an image."""
        return dict(self._image(tag).labels)

    def config(self, tag: str) -> dict[str, object]:
        """Its run configuration."""
        return dict(self._image(tag).attrs["Config"])

    def layers(self, tag: str) -> list[Layer]:
        """Layers, lowest first; history has a line for every instruction and says of none whether it made a layer."""
        image = self._image(tag)
        digests = [str(digest) for digest in image.attrs["RootFS"].get("Layers") or []]
        with _asking(f"tell the history of {tag}"):
            made = [line for line in reversed(image.history()) if _makes_layer(line["CreatedBy"])]
        if len(made) != len(digests):
            return [Layer(digest, "", None) for digest in digests]
        return [Layer(digest, line["CreatedBy"], int(line["Size"])) for digest, line in zip(digests, made, strict=True)]

    def load(self, archive: Path) -> None:
        """Take in an image archive."""
        with _asking(f"load {archive}"), archive.open("rb") as file:
            self._daemon.images.load(file)

    def pull(self, reference: str, platform: Platform) -> str:
        """Fetch an image from its registry; the digest that was pulled."""
        with _asking(f"pull {reference}"):
            image = self._daemon.images.pull(reference, platform=platform.oci)
        name = reference.partition("@")[0]
        name = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
        digests = [one for one in image.attrs.get("RepoDigests") or [] if one.partition("@")[0] == name]
        if not digests:
            raise CheckFailed(f"no digest came with {reference}", why="an image without one cannot be pinned")
        return str(digests[0]).partition("@")[2]

    def tag(self, image: str, tag: str) -> None:
        """Give an image another name."""
        with _asking(f"tag {image}"):
            self._daemon.images.get(image).tag(full_tag(tag))

    def read(self, tag: str, path: str) -> bytes:
        """Content of one file of an image; links are followed inside of it."""
        with _asking(f"read {path} of {tag}"):
            made = self._daemon.containers.create(self._image(tag).id, "true")
            try:
                pieces, facts = made.get_archive(path)
                if facts["linkTarget"]:  # which the daemon has followed to its end
                    pieces, facts = made.get_archive(facts["linkTarget"])
                archive = io.BytesIO(b"".join(pieces))
            finally:
                made.remove(force=True)
        with tarfile.open(fileobj=archive) as tar:
            file = tar.extractfile(tar.getmembers()[0])
            if file is None:
                raise CheckFailed(f"{path} in {tag} is no file")
            return file.read()

    def untag(self, tag: str) -> None:
        """Remove a name, and the image with its last one."""
        self._remove(full_tag(tag))

    def _remove(self, image: str) -> None:
        """Remove an image; one that is not there, or that a container uses, stays as it is."""
        with _asking(f"remove {image}"):
            try:
                self._daemon.images.remove(image)
            except _sdk().errors.ImageNotFound:
                return
            except _sdk().errors.APIError as refused:
                if refused.status_code != _CONFLICT:
                    raise

    def run(self, launch: Launch) -> DockerContainer:
        """Start a container and return at once."""
        name = launch.name or f"sparkforge-{uuid.uuid4().hex[:12]}"
        self._image(launch.image)  # which fails in our words
        with _asking(f"make the container {name}", do=f"if it is left from an earlier run: docker rm --force {name}"):
            self._daemon.containers.create(**self._options(launch), name=name)
        made = DockerContainer(self, name)
        try:
            with _asking(f"start {launch.image}"):
                made.found.start()
        except BaseException as failed:
            made.remove()
            if launch.gpus and isinstance(failed, CheckFailed):
                raise EnvironmentLacks(
                    "Docker could not start a container with GPUs",
                    why=failed.why,
                    do="install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker"
                    " && sudo systemctl restart docker",
                ) from failed
            raise
        return made

    def _options(self, launch: Launch) -> dict[str, Any]:
        types = _sdk().types
        limits = [types.Ulimit(name=name, soft=limit, hard=limit) for name, limit in launch.ulimits.items()]
        gpus = [types.DeviceRequest(count=-1, capabilities=[["gpu"]])] if launch.gpus else None
        return {
            "image": full_tag(launch.image),
            "command": list(launch.command) or None,
            "entrypoint": None if launch.entrypoint is None else [launch.entrypoint],
            "environment": dict(launch.env),
            "user": launch.user,
            "volumes": [mount.text for mount in launch.mounts],
            "ports": {f"{port}/tcp": (launch.publish, port) for port in launch.ports},
            "network_mode": launch.network,
            "ipc_mode": launch.ipc,
            "shm_size": launch.shm,
            "devices": [f"{device}:{device}:rwm" for device in launch.devices],
            "cap_add": list(launch.capabilities),
            "ulimits": limits,
            "device_requests": gpus,
        }


@dataclass(frozen=True)
class DockerContainer:
    """A container of the Docker daemon, by name."""

    engine: Docker
    id: str

    @property
    def found(self) -> Any:
        """The SDK's container, as it is now."""
        return self.engine._daemon.containers.get(self.id)  # noqa: SLF001  two halves of one module

    def alive(self) -> bool:
        """Whether its first process still runs."""
        with _asking(f"look at {self.id}"):
            return bool(self.found.status == "running")

    def logs(self) -> str:
        """Everything that it wrote so far."""
        with _asking(f"tell the log of {self.id}"):
            return bytes(self.found.logs()).decode(errors="replace")

    def follow(self) -> Iterator[bytes]:
        """What it writes, from its start until its end."""
        with _asking(f"follow the log of {self.id}"):
            yield from self.found.logs(stream=True, follow=True)

    def stop(self, *, grace: float = 30.0) -> int:
        """SIGTERM, and SIGKILL after `grace` seconds; the exit status."""
        with _asking(f"stop {self.id}"):
            self.found.stop(timeout=int(grace))
        return self.wait()

    def wait(self, *, timeout: float | None = None) -> int:
        """Exit status once it has ended."""
        with _asking(f"wait for {self.id}"):
            try:
                return int(self.found.wait(timeout=timeout)["StatusCode"])
            except requests.RequestException as late:
                if timeout is None or not self.alive():
                    raise
                raise CheckFailed(f"the container did not end within {timeout:.0f} s", why=self.id) from late

    def exec(self, command: Sequence[str], *, check: bool = True) -> Done:
        """Run another command in it, as its own user."""
        begun = time.monotonic()
        with _asking(f"run {command[0]} in {self.id}"):
            code, (out, err) = self.found.exec_run(list(command), demux=True)
        done = Done(tuple(command), code, out or b"", err or b"", time.monotonic() - begun)
        if check and code:
            said = tail(done.err) or tail(done.out)
            raise CheckFailed(f"{command[0]} ended with status {code}", why=f"{quoted(command)}\n{said}")
        return done

    def remove(self) -> None:
        """Remove it, ended or not."""
        with _asking(f"remove {self.id}"):
            try:
                self.found.remove(force=True, v=True)
            except _sdk().errors.NotFound:
                return
            except _sdk().errors.APIError as refused:
                if refused.status_code != _CONFLICT:  # somebody else is removing it
                    raise


def clients() -> list[Docker]:
    """Every Docker client of this machine: those on PATH in order, then the distribution's own."""
    found: list[Docker] = []
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin"]
    seen: set[Path] = set()
    for folder in folders:
        program = Path(folder or ".", "docker")
        if program.is_file() and os.access(program, os.X_OK) and program.resolve() not in seen:
            seen.add(program.resolve())
            found.append(Docker(str(program)))
    return found


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "DOCKER_BUILDKIT": "1",  # clients before 23 build without it, and know no RUN --mount then
        "BUILDKIT_PROGRESS": "plain",
        "BUILDX_BUILDER": "default",  # the daemon's own: a builder in a container does not see its images
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",  # they turn an image into an index
        "DOCKER_CLI_HINTS": "false",
    }


def _makes_layer(created_by: str) -> bool:
    """Whether an instruction, as history words it, leaves a layer."""
    words = created_by.removeprefix("/bin/sh -c").strip()
    if words.startswith("#(nop)"):  # the words of the builder before BuildKit, which marks what runs nothing
        words = words.removeprefix("#(nop)").strip()
        return words.split(" ", 1)[0] in _LAYERED
    if created_by.startswith("/bin/sh -c"):
        return True
    first = words.split(" ", 1)[0]
    return first in _LAYERED or first not in _METADATA
