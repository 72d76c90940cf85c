"""Buildah: builds the same Dockerfile without a daemon, with `--isolation chroot`, which needs the fewest rights.

Where it differs from Docker: it keeps layers only with `--layers`, and a health check only in Docker's format. It
reuses a `RUN` whose mounted files have changed (1.28), so every RUN of ours names the digest of what it mounts. And
`buildah run` ignores the entrypoint, kills its child on SIGTERM, and shares network and process ids with the host;
`BuildahContainer` makes up for that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from sparkforge.core.errors import CheckFailed, EnvironmentLacks, SparkforgeError
from sparkforge.core.platforms import Platform
from sparkforge.core.proc import Done, run
from sparkforge.engine import proof
from sparkforge.engine.engine import Able, Launch, Layer, Recipe, full_tag, no_image, streamed

_ISOLATION = ("--isolation", "chroot")
_MARK = "SPARKFORGE_RUN"
_WORKING = "-working-container"  # as buildah names the containers of a build
_BASE_LABEL = "dev.sparkforge.base"


@dataclass(frozen=True)
class Buildah:
    """The buildah program.

    Attributes:
        program: its path.
    """

    program: str = "buildah"
    name = "buildah"

    def _do(self, *words: str, check: bool = True, do: str = "") -> Done:
        return run([self.program, *words], check=check, do=do)

    def answer(self) -> str | None:
        """What identifies the engine that answers now; None if none does."""
        try:
            return self._do("version").text
        except SparkforgeError:
            return None

    def prove(self) -> Able:
        """Build a file with one `RUN --mount`."""
        try:
            version = json.loads(self._do("version", "--json").text)["version"]
        except SparkforgeError as refused:
            return Able(able=False, reason=f"{self.program}: {proof.last_line(refused.why)}")
        words = ("build", *_ISOLATION, "--no-cache", "--format", "docker", "--tag", proof.TAG)
        refused_line = proof.attempt(lambda folder: self._do(*words, str(folder)))
        self._do("rmi", "--force", proof.TAG, check=False)
        if refused_line:
            return Able(able=False, reason=f"{self.program}: {refused_line}", version=version)
        driver = self._info()["GraphDriverName"]
        slow = "" if driver == "overlay" else f", store {driver}: slow, each layer is a whole copy"
        return Able(able=True, reason=f"buildah {version} through {self.program}{slow}", version=version)

    def _info(self) -> dict[str, Any]:
        store: dict[str, Any] = json.loads(self._do("info").text)["store"]
        return store

    def root(self) -> Path:
        """Its storage directory."""
        return Path(self._info()["GraphRoot"])

    def build(self, recipe: Recipe) -> str:
        """Build and tag an image; its id."""
        tag = full_tag(recipe.tag)
        words = [self.program, "build", *_ISOLATION, "--layers", "--force-rm", "--format", "docker"]
        words += ["--file", str(recipe.dockerfile), "--target", recipe.target]
        words += ["--tag", tag, "--platform", recipe.platform.oci]
        # chroot isolation always has the host's network; no RUN uses it unless its recipe says `network`.
        for name, value in sorted(recipe.args.items()):
            words += ["--build-arg", f"{name}={value}"]
        for name, value in sorted(recipe.labels.items()):
            words += ["--label", f"{name}={value}"]
        before = self.image_id(tag) if self.has(tag) else ""
        with FileLock(Path(tempfile.gettempdir(), f"sparkforge-buildah-{os.getuid()}.lock")):
            self.sweep()
            streamed([*words, str(recipe.context)], name=self.name)
        after = self.image_id(tag)
        if before and before != after:
            # Remove what had this name, unless it has another one or a container: only its own layers are lost.
            self._do("rmi", before, check=False)
        return after

    def sweep(self) -> list[str]:
        """Remove working containers that killed builds left behind; the caller holds the lock of builds."""
        listed = json.loads(self._do("containers", "--json").text or "null") or []
        gone: list[str] = []
        for container in listed:
            name = str(container["containername"])
            if not name.endswith(_WORKING):  # of a run, not of a build
                continue
            said = self._do("inspect", "--type", "container", container["id"], check=False)
            labels = json.loads(said.text)["Docker"]["config"].get("Labels") if said.code == 0 else None
            if _BASE_LABEL in (labels or {}):
                self._do("rm", container["id"], check=False)
                gone.append(name)
        return gone

    def has(self, tag: str) -> bool:
        """Whether the image is here."""
        return bool(self._find(tag))

    def _find(self, tag: str) -> str:
        return self._do("images", "--quiet", "--no-trunc", full_tag(tag), check=False).text

    def find(self, labels: Mapping[str, str]) -> list[str]:
        """Tags of the images with these labels, the newest first."""
        with_each = [
            json.loads(self._do("images", "--json", "--filter", f"label={name}={value}").text)
            for name, value in labels.items()  # several filters in one call mean `or`
        ]
        ids = set.intersection(*({image["id"] for image in found} for found in with_each))
        found = sorted(with_each[0], key=lambda image: int(image["created"]), reverse=True)
        return [str(tag) for image in found if image["id"] in ids for tag in image["names"] or ()]

    def image_id(self, tag: str) -> str:
        """`sha256:...` of the image's configuration."""
        found = self._find(tag)
        if not found:
            raise no_image(tag, self.name)
        return found.splitlines()[0]

    def _inspect(self, tag: str) -> dict[str, Any]:
        if not self.has(tag):
            raise no_image(tag, self.name)
        found: dict[str, Any] = json.loads(self._do("inspect", "--type", "image", full_tag(tag)).text)["Docker"]
        return found

    def labels(self, tag: str) -> dict[str, str]:
        """Labels of an image."""
        return dict(self._inspect(tag)["config"].get("Labels") or {})

    def config(self, tag: str) -> dict[str, object]:
        """Its run configuration."""
        return dict(self._inspect(tag)["config"])

    def layers(self, tag: str) -> list[Layer]:
        """Layers, lowest first; sizes are read from the store's own index."""
        image = self._inspect(tag)
        digests = [str(digest) for digest in image["rootfs"]["diff_ids"]]
        made = [line.get("created_by", "") for line in image["history"] if not line.get("empty_layer")]
        if len(made) != len(digests):
            made = [""] * len(digests)
        sizes: dict[str, int] = {}
        index = self.root() / "overlay-layers" / "layers.json"
        if index.is_file():
            sizes = {
                layer["diff-digest"]: layer.get("diff-size", 0)
                for layer in json.loads(index.read_bytes())
                if "diff-digest" in layer
            }
        return [Layer(digest, by, sizes.get(digest)) for digest, by in zip(digests, made, strict=True)]

    def load(self, archive: Path) -> None:
        """Take in an image archive."""
        self._do("pull", "--quiet", f"docker-archive:{archive}")

    def pull(self, reference: str, platform: Platform) -> str:
        """Fetch an image from its registry; the digest that was pulled."""
        self._do("pull", "--quiet", "--platform", platform.oci, reference)
        return self._do("inspect", "--type", "image", "--format", "{{.FromImageDigest}}", reference).text

    def tag(self, image: str, tag: str) -> None:
        """Give an image another name."""
        self._do("tag", image, full_tag(tag))

    @contextmanager
    def _mounted(self, tag: str) -> Iterator[Path]:
        made = self._do("from", "--pull-never", "--quiet", full_tag(tag)).text
        try:
            yield Path(self._do("mount", made).text)
        finally:
            self._do("rm", made, check=False)

    def read(self, tag: str, path: str) -> bytes:
        """Content of one file of an image; links are followed inside of it."""
        with self._mounted(tag) as root:
            return _inside(root, path).read_bytes()

    def untag(self, tag: str) -> None:
        """Remove a name, and the image with its last one."""
        self._do("rmi", full_tag(tag), check=False)

    def run(self, launch: Launch) -> BuildahContainer:
        """Start a container and return at once."""
        if launch.gpus:
            raise EnvironmentLacks(
                "buildah cannot give a container GPUs", why="--isolation chroot has no device hooks", do="use Docker"
            )
        tag = full_tag(launch.image)
        config = self.config(tag)
        entrypoint = [launch.entrypoint] if launch.entrypoint else _words(config.get("Entrypoint"))
        command = list(launch.command) or ([] if launch.entrypoint else _words(config.get("Cmd")))
        name = f"sparkforge-{uuid.uuid4().hex[:12]}"
        self._do("from", "--pull-never", "--quiet", "--name", name, tag)
        words = [self.program, "run", *_ISOLATION, "--env", f"{_MARK}={name}"]
        if launch.user is not None:
            words += ["--user", launch.user]
        for key, value in launch.env.items():
            words += ["--env", f"{key}={value}"]
        for mount in launch.mounts:
            words += ["--volume", mount.text]
        log = Path(tempfile.mkstemp(prefix=f"{name}-", suffix=".log")[1])
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*words, name, "--", *entrypoint, *command], stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        return BuildahContainer(self, name, process, log, tuple(words[2:]))


@dataclass(frozen=True)
class BuildahContainer:
    """A working container with one `buildah run` in it."""

    engine: Buildah
    id: str
    process: subprocess.Popen[bytes] = field(repr=False)
    log: Path
    flags: tuple[str, ...]

    def alive(self) -> bool:
        """Whether its first process still runs."""
        return self.process.poll() is None

    def logs(self) -> str:
        """Everything that it wrote so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def stop(self, *, grace: float = 30.0) -> int:
        """SIGTERM to the first process of the image, and SIGKILL after `grace` seconds; the exit status."""
        first = _payload(self.process.pid)
        if first is not None:
            _signal(first, signal.SIGTERM)
        try:
            code = self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self._kill_all()
            self.process.wait()
            code = 128 + signal.SIGKILL
        return code

    def wait(self, *, timeout: float | None = None) -> int:
        """Exit status once it has ended."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired as late:
            raise CheckFailed(f"the container did not end within {timeout:.0f} s", why=self.id) from late

    def exec(self, command: Sequence[str], *, check: bool = True) -> Done:
        """Run another command in it, as its own user."""
        return run([self.engine.program, "run", *self.flags, self.id, "--", *command], check=check)

    def stray(self) -> list[int]:
        """Processes that were started in it and still run, the first one included."""
        mark = f"{_MARK}={self.id}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                try:
                    if mark in (folder / "environ").read_bytes().split(b"\0"):
                        found.append(int(folder.name))
                except OSError:  # it ended, or is not ours to read
                    continue
        return found

    def _kill_all(self) -> None:
        for process in self.stray():
            _signal(process, signal.SIGKILL)

    def remove(self) -> None:
        """Remove it, ended or not."""
        self._kill_all()
        if self.alive():
            self.process.kill()
            self.process.wait()
        self.engine._do("rm", self.id, check=False)  # noqa: SLF001  two halves of one module
        self.log.unlink(missing_ok=True)


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []


def _inside(root: Path, path: str) -> Path:
    """A path of an image as one of the host; a link that leads to `/` leads to the image's own."""
    parts = list(reversed(Path(path).parts[1:]))
    here, hops = root, 0
    while parts:
        part = parts.pop()
        if part == "..":
            here = root if here == root else here.parent
            continue
        here /= part
        if here.is_symlink() and hops < 40:  # noqa: PLR2004  the kernel's own limit
            hops += 1
            target = here.readlink()
            parts += reversed([part for part in target.parts if part != "/"])
            here = root if target.is_absolute() else here.parent
    return here


def _signal(process: int, what: signal.Signals) -> None:
    try:
        os.kill(process, what)
    except ProcessLookupError:
        return


def _payload(top: int) -> int | None:
    """The first process below buildah's own that is not buildah: what a container would call process 1."""
    end = time.monotonic() + 2
    while time.monotonic() < end:
        level = [top]
        while level:
            for process in level:
                exe = _exe(process)
                if exe and "buildah" not in Path(exe.removesuffix(" (deleted)")).name:
                    return process
            level = [child for process in level for child in _children(process)]
        time.sleep(0.05)
    return None


def _exe(process: int) -> str:
    try:
        return str(Path(f"/proc/{process}/exe").readlink())
    except OSError:
        return ""


def _children(process: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found
