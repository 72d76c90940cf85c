"""Servers from a plain virtual environment on this machine: smoke without an image."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from sparkforge.core.errors import BadInput
from sparkforge.core.proc import run
from sparkforge.smoke.regret import REFERENCE
from sparkforge.smoke.sites import LOOPBACK, REQUEST, free_port

_REFERENCE_SECONDS = 600.0


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
            raise BadInput(f"{self.venv} is not a virtual environment with vLLM", why="it has no bin/vllm")

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
        words = [vllm, "serve", str(model), *flags, "--host", LOOPBACK, "--port", str(port)]
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
        return VenvServer(self, process, f"http://{LOOPBACK}:{port}", str(model), scratch, own, log)


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
        asked = self.scratch / REQUEST
        asked.write_bytes(request)
        words = [self.site.venv / "bin" / "python", REFERENCE, asked]
        return run(words, env=self.env, cwd=self.scratch, timeout=_REFERENCE_SECONDS).out

    def unwritten(self) -> str:
        """Always empty: its home directory is ours."""
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
