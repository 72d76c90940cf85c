"""Docker: BuildKit through a daemon, called by the client that proves able.

Several clients may stand on PATH, and the first need not be one that can build: a client of Docker 23 or later
hands BuildKit builds to its plugin `buildx` and fails without it, while an older one speaks to the daemon's own
BuildKit. So a client is a path here, not a name, and `choose` proves each.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkforge.core.errors import CheckFailed, SparkforgeError
from sparkforge.core.platforms import Platform
from sparkforge.core.proc import Done, run
from sparkforge.engine import proof
from sparkforge.engine.engine import Able, Launch, Layer, Recipe, full_tag, no_image, streamed

_LAYERED = ("ADD", "COPY", "RUN", "WORKDIR")
_METADATA = (
    *("ARG", "CMD", "ENTRYPOINT", "ENV", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "SHELL"),
    *("STOPSIGNAL", "USER", "VOLUME"),
)
_START = "invoke setup  (it starts the daemon), or: systemctl start docker"


@dataclass(frozen=True)
class Docker:
    """A Docker client and the daemon that it reaches.

    Attributes:
        program: path of the client.
    """

    program: str
    name = "docker"

    def _do(self, *words: str, check: bool = True, do: str = "", stdin: bytes | None = None) -> Done:
        return run([self.program, *words], env=_environment(), check=check, do=do, stdin=stdin)

    def prove(self) -> Able:
        """Build a file with one `RUN --mount`."""
        try:
            said = json.loads(self._do("version", "--format", "{{json .}}", do=_START).text)
        except SparkforgeError as refused:
            return Able(able=False, reason=f"{self.program}: {proof.last_line(refused.why)}")
        server = said.get("Server") or {}
        version = str(server.get("Version", "unknown"))
        refused_line = proof.attempt(lambda folder: self._do("build", "--no-cache", "--tag", proof.TAG, str(folder)))
        self._do("image", "rm", "--force", proof.TAG, check=False)
        if refused_line:
            return Able(able=False, reason=f"{self.program}: {refused_line}", version=version)
        return Able(able=True, reason=f"Docker {version} through {self.program}", version=version)

    def root(self) -> Path:
        """The daemon's data directory."""
        return Path(self._do("info", "--format", "{{.DockerRootDir}}").text)

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
            # What had this name goes, unless it has another one or a container: only its own layers are lost.
            self._do("image", "rm", before, check=False)
        return after

    def has(self, tag: str) -> bool:
        """Whether the image is here."""
        return self._do("image", "inspect", full_tag(tag), check=False).code == 0

    def _inspect(self, tag: str) -> dict[str, Any]:
        done = self._do("image", "inspect", full_tag(tag), check=False, do=_START)
        if done.code:
            if b"No such image" not in done.err:
                said = proof.last_line(done.err.decode(errors="replace"))
                raise CheckFailed(f"docker does not tell about {tag}", why=said, do=_START)
            raise no_image(tag, self.name)
        found: list[dict[str, Any]] = json.loads(done.text)
        return found[0]

    def image_id(self, tag: str) -> str:
        """`sha256:...` of the image's configuration."""
        return str(self._inspect(tag)["Id"])

    def labels(self, tag: str) -> dict[str, str]:
        """Labels of an image."""
        return dict(self._inspect(tag)["Config"].get("Labels") or {})

    def config(self, tag: str) -> dict[str, object]:
        """Its run configuration."""
        return dict(self._inspect(tag)["Config"])

    def layers(self, tag: str) -> list[Layer]:
        """Layers, lowest first; history has a line for every instruction and says of none whether it made a layer."""
        digests = [str(digest) for digest in self._inspect(tag)["RootFS"].get("Layers") or []]
        words = ("history", "--no-trunc", "--human=false", "--format", "{{json .}}", full_tag(tag))
        history = [json.loads(line) for line in self._do(*words).text.splitlines()]
        made = [line for line in reversed(history) if _makes_layer(line["CreatedBy"])]
        if len(made) != len(digests):
            return [Layer(digest, "", None) for digest in digests]
        return [Layer(digest, line["CreatedBy"], int(line["Size"])) for digest, line in zip(digests, made, strict=True)]

    def load(self, archive: Path) -> None:
        """Take in an image archive."""
        self._do("load", "--quiet", "--input", str(archive))

    def pull(self, reference: str, platform: Platform) -> str:
        """Fetch an image from its registry; the digest that was pulled."""
        self._do("pull", "--quiet", "--platform", platform.oci, reference)
        found: list[dict[str, Any]] = json.loads(self._do("image", "inspect", reference).text)
        name = reference.partition("@")[0]
        name = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
        digests = [one for one in found[0].get("RepoDigests") or [] if one.partition("@")[0] == name]
        if not digests:
            raise CheckFailed(f"no digest came with {reference}", why="an image without one cannot be pinned")
        return str(digests[0]).partition("@")[2]

    def tag(self, image: str, tag: str) -> None:
        """Give an image another name."""
        self._do("tag", image, full_tag(tag))

    def read(self, tag: str, path: str) -> bytes:
        """Content of one file of an image."""
        made = self._do("create", full_tag(tag), "true").text
        try:
            with tarfile.open(fileobj=io.BytesIO(self._do("cp", "--follow-link", f"{made}:{path}", "-").out)) as tar:
                for member in tar:
                    file = tar.extractfile(member)
                    if file is not None:
                        return file.read()
        finally:
            self._do("rm", "--force", made, check=False)
        raise CheckFailed(f"{path} in {tag} is no file")

    def untag(self, tag: str) -> None:
        """Remove a name, and the image with its last one."""
        self._do("image", "rm", full_tag(tag), check=False)

    def run(self, launch: Launch) -> DockerContainer:
        """Start a container and return at once."""
        name = f"sparkforge-{uuid.uuid4().hex[:12]}"
        words = ["run", "--detach", "--name", name, "--shm-size", launch.shm]
        if launch.user is not None:
            words += ["--user", launch.user]
        if launch.entrypoint is not None:
            words += ["--entrypoint", launch.entrypoint]
        if launch.gpus:
            words += ["--gpus", "all"]
        if not launch.network:
            words += ["--network", "none"]
        for key, value in launch.env.items():
            words += ["--env", f"{key}={value}"]
        for mount in launch.mounts:
            words += ["--volume", mount.text]
        for port in launch.ports:
            words += ["--publish", f"127.0.0.1:{port}:{port}"]
        try:
            self._do(*words, full_tag(launch.image), *launch.command)
        except SparkforgeError:
            self._do("rm", "--force", name, check=False)
            raise
        return DockerContainer(self, name)


@dataclass(frozen=True)
class DockerContainer:
    """A container of the Docker daemon, by name."""

    engine: Docker
    id: str

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.engine._do("inspect", "--format", "{{json .State}}", self.id).text)  # noqa: SLF001  two halves of one module
        return state

    def alive(self) -> bool:
        """Whether its first process still runs."""
        return bool(self._state()["Running"])

    def health(self) -> str:
        """`starting`, `healthy` or `unhealthy`, by the image's own health check."""
        return str((self._state().get("Health") or {}).get("Status", "none"))

    def logs(self) -> str:
        """Everything that it wrote so far."""
        done = self.engine._do("logs", self.id)  # noqa: SLF001  as above
        return (done.out + done.err).decode(errors="replace")

    def stop(self, *, grace: float = 30.0) -> int:
        """SIGTERM, and SIGKILL after `grace` seconds; the exit status."""
        self.engine._do("stop", "--time", str(int(grace)), self.id)  # noqa: SLF001  as above
        return int(self._state()["ExitCode"])

    def wait(self, *, timeout: float | None = None) -> int:
        """Exit status once it has ended."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.alive():
            if end is not None and time.monotonic() > end:
                raise CheckFailed(f"the container did not end within {timeout:.0f} s", why=self.id)
            time.sleep(0.1)
        return int(self._state()["ExitCode"])

    def exec(self, command: Sequence[str], *, check: bool = True) -> Done:
        """Run another command in it, as its own user."""
        return self.engine._do("exec", self.id, *command, check=check)  # noqa: SLF001  as above

    def remove(self) -> None:
        """Remove it, ended or not."""
        self.engine._do("rm", "--force", "--volumes", self.id, check=False)  # noqa: SLF001  as above


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
