"""Servers in containers of one image, in any engine."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.errors import CheckFailed
from sparkforge.engine.engine import Container, Engine, Launch, Mount
from sparkforge.smoke.regret import REFERENCE
from sparkforge.smoke.sites import LOOPBACK, REQUEST, free_port

_MODEL = "/smoke/model"
_WORK = "/smoke/work"
_PYTHON = "/opt/venv/bin/python"


@dataclass(frozen=True)
class ImageSite:
    """Containers of one image.

    Attributes:
        engine: that holds the image.
        image: its tag.
        gpus: whether a container gets the GPUs.
    """

    engine: Engine
    image: str
    gpus: bool = False
    users: bool = True

    @property
    def subject(self) -> str:
        """The image's tag."""
        return self.image

    def start(self, model: Path, flags: Sequence[str], env: Mapping[str, str], *, user: str | None) -> ImageServer:
        """Start a container as a user does, the model as its first word, with a fresh volume for its caches."""
        port = free_port()
        scratch = Path(tempfile.mkdtemp(prefix="sparkforge-smoke-"))
        work, volume = scratch / "work", scratch / "volume"
        for folder, mode in ((scratch, 0o755), (work, 0o755), (volume, 0o777)):
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)  # whatever the umask: the server is another user than we
        shutil.copy(REFERENCE, work / REFERENCE.name)
        mounts = [
            Mount(model.resolve(), _MODEL, read_only=True),
            Mount(work, _WORK, read_only=True),
            Mount(volume, f"{self._home()}/.cache"),
        ]
        words = [_MODEL, *flags, "--host", "0.0.0.0", "--port", str(port)]  # noqa: S104  of the container
        try:
            container = self.engine.run(
                Launch(self.image, words, env=env, user=user, mounts=mounts, ports=[port], gpus=self.gpus)
            )
        except BaseException:
            shutil.rmtree(scratch)
            raise
        return ImageServer(self, container, f"http://{LOOPBACK}:{port}", _MODEL, scratch, mounts)

    def _home(self) -> str:
        """Home directory of the image; its caches are below."""
        words = self.engine.config(self.image).get("Env")
        known = dict(str(word).split("=", 1) for word in words) if isinstance(words, list) else {}
        if "HOME" not in known:
            raise CheckFailed(f"{self.image} sets no HOME", why="a user without a passwd entry then has none")
        return known["HOME"]


@dataclass(frozen=True)
class ImageServer:
    """A server in a container."""

    site: ImageSite
    container: Container
    base: str
    model: str
    scratch: Path
    mounts: Sequence[Mount]

    def alive(self) -> bool:
        """Whether the container's first process still runs."""
        return self.container.alive()

    def logs(self) -> str:
        """Everything that it wrote so far."""
        return self.container.logs()

    def reference(self, request: bytes) -> bytes:
        """Run the regret reference in the container."""
        self.scratch.joinpath("work", REQUEST).write_bytes(request)
        return self.container.exec([_PYTHON, f"{_WORK}/{REFERENCE.name}", f"{_WORK}/{REQUEST}"]).out

    def unwritten(self) -> str:
        """What the entrypoint says about a cache that it cannot write, or that the volume is empty."""
        refused = [line for line in self.logs().splitlines() if "cannot be written" in line]
        return refused[0] if refused else "" if any(self.mounts[-1].source.iterdir()) else "the volume is empty"

    def stop(self, *, grace: float) -> int | None:
        """SIGTERM to the container's first process."""
        code = self.container.stop(grace=grace)
        return None if code in (-signal.SIGKILL, 128 + signal.SIGKILL) else code

    def remove(self) -> None:
        """Remove the container and the volume."""
        self.container.remove()
        try:
            shutil.rmtree(self.scratch)
        except FileNotFoundError:
            return
        except PermissionError:  # files of another user: only the engine may remove them
            words = ["-c", f"find {self.mounts[-1].target} -mindepth 1 -delete"]
            launch = Launch(self.site.image, words, user="0:0", mounts=self.mounts[-1:], entrypoint="/bin/sh")
            sweeper = self.site.engine.run(launch)
            try:
                sweeper.wait(timeout=120)
            finally:
                sweeper.remove()
            shutil.rmtree(self.scratch)
