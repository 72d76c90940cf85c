"""Where a server can run: in a container of an image, or from a plain virtual environment on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from sparkforge.engine.base import Container, Engine, Launch, Mount
from sparkforge.errors import BadInput, CheckFailed
from sparkforge.proc import run, tail
from sparkforge.smoke.regret import REFERENCE

_MODEL = "/smoke/model"
_WORK = "/smoke/work"
_PYTHON = "/opt/venv/bin/python"
_REQUEST = "request.json"
_LOOPBACK = "127.0.0.1"
_REFERENCE_SECONDS = 600.0


class Server(Protocol):
    """A server that was started."""

    @property
    def base(self) -> str:
        """Its address, http://host:port."""

    @property
    def model(self) -> str:
        """The model's directory, as the server sees it."""

    def alive(self) -> bool:
        """Whether its first process still runs."""

    def logs(self) -> str:
        """Everything that it wrote so far."""

    def reference(self, request: bytes) -> bytes:
        """Run the regret reference with the server's own Python."""

    def unwritten(self) -> str:
        """Why its fresh volume for caches stayed unused; empty when it was used, or there is none."""

    def stop(self, *, grace: float) -> int | None:
        """SIGTERM; the exit status, or None when something of it still ran after `grace` seconds (killed then)."""

    def remove(self) -> None:
        """Remove it and all that it left on this machine. Twice is no error."""


class Site(Protocol):
    """A place that can start servers."""

    @property
    def subject(self) -> str:
        """What is being looked at, for people."""

    @property
    def users(self) -> bool:
        """Whether a server can be started as another user."""

    def start(self, model: Path, flags: Sequence[str], env: Mapping[str, str], *, user: str | None) -> Server:
        """Start `vllm serve` on a model with these flags; host and port are the site's business."""


def free_port() -> int:
    """A TCP port on which nothing of this machine listens now."""
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


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
        return ImageServer(self, container, f"http://{_LOOPBACK}:{port}", _MODEL, scratch, mounts)

    def _home(self) -> str:
        """Home directory of the image; its caches are below."""
        words = self.engine.config(self.image).get("Env")
        known = dict(str(word).split("=", 1) for word in words) if isinstance(words, list) else {}
        if "HOME" not in known:
            raise CheckFailed(f"{self.image} names no HOME", why="a user without a passwd entry then has none")
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
        self.scratch.joinpath("work", _REQUEST).write_bytes(request)
        return self.container.exec([_PYTHON, f"{_WORK}/{REFERENCE.name}", f"{_WORK}/{_REQUEST}"]).out

    def unwritten(self) -> str:
        """What the entrypoint says of a cache that it cannot write, or that the volume is empty."""
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


@dataclass(frozen=True)
class VenvSite:
    """A virtual environment with vLLM on this machine.

    Attributes:
        venv: its directory.
    """

    venv: Path
    users: bool = False

    def __post_init__(self) -> None:
        if not (self.venv / "bin" / "vllm").is_file():
            raise BadInput(f"{self.venv} is no virtual environment with vLLM", why="bin/vllm is not there")

    @property
    def subject(self) -> str:
        """The environment's directory."""
        return str(self.venv)

    def start(self, model: Path, flags: Sequence[str], env: Mapping[str, str], *, user: str | None) -> VenvServer:
        """Start a process group with a home directory of its own."""
        if user is not None:
            raise BadInput("a virtual environment serves as the user who starts it")
        port = free_port()
        scratch = Path(tempfile.mkdtemp(prefix="sparkforge-smoke-"))
        vllm = str(self.venv / "bin" / "vllm")
        words = [vllm, "serve", str(model), *flags, "--host", _LOOPBACK, "--port", str(port)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "PYTHON"))}
        path = f"{self.venv / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}"
        # A home of its own, so that no cache of an earlier run and no setting of the user's takes part.
        own = {**kept, "PATH": path, "HOME": str(scratch), "XDG_CACHE_HOME": str(scratch / ".cache"), **env}
        log = (scratch / "log").open("wb")
        process = subprocess.Popen(
            words,
            env=own,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # the group that `stop` looks for what is left of
        )
        return VenvServer(self, process, f"http://{_LOOPBACK}:{port}", str(model), scratch, own, log)


@dataclass(frozen=True)
class VenvServer:
    """A server that is a process group of this machine."""

    site: VenvSite
    process: subprocess.Popen[bytes]
    base: str
    model: str
    scratch: Path
    env: Mapping[str, str]
    log: IO[bytes] = field(repr=False)

    def alive(self) -> bool:
        """Whether the first process still runs."""
        return self.process.poll() is None

    def logs(self) -> str:
        """Everything that it wrote so far."""
        file = self.scratch / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def reference(self, request: bytes) -> bytes:
        """Run the regret reference with the environment's Python."""
        asked = self.scratch / _REQUEST
        asked.write_bytes(request)
        words = [self.site.venv / "bin" / "python", REFERENCE, asked]
        return run(words, env=self.env, cwd=self.scratch, timeout=_REFERENCE_SECONDS).out

    def unwritten(self) -> str:
        """Nothing: its home directory is our own."""
        return ""

    def stop(self, *, grace: float) -> int | None:
        """SIGTERM to the first process; the whole group must end."""
        end = time.monotonic() + grace
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self._kill()
            return None
        while self._group_lives():
            if time.monotonic() > end:
                self._kill()
                return None
            time.sleep(0.1)
        return code

    def _group_lives(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def remove(self) -> None:
        """Kill what still runs and remove the home directory."""
        self._kill()
        self.log.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


def last_lines(log: str, count: int = 40) -> str:
    """End of a server's log, for people."""
    return tail(log.encode(), count)
