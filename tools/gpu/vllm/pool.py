"""Jobs in processes of their own, several at a time: each with a limit, and none of them stops the others."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


@dataclass
class Job:
    """A process to run.

    Attributes:
        name: also the stem of its files.
        after: jobs that must have ended before it starts, however they ended.
        needs: jobs that must have succeeded; without them it is skipped.
        script: the file here that it runs.
        arguments: its words; or what makes them when it starts, None where there is nothing to do.
        env: added to the environment.
        limit: seconds.
        optional: whether it is left out when little time is left.
    """

    name: str
    script: str
    arguments: list[str] | Callable[[], list[str] | None] = field(default_factory=list)
    after: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    limit: float = 240
    optional: bool = False


@dataclass
class Ended:
    """How a job ended: "done", "failed", "timeout" or "skipped"; its last lines unless it is done."""

    state: str
    seconds: float = 0.0
    last: tuple[str, ...] = ()


class Pool:
    """Runs jobs; results lie in `folder` as NAME.json, NAME.npz and NAME.log."""

    def __init__(self, folder: Path, *, width: int, until: float, env: dict[str, str], devices: int = 1):
        self.folder, self.width, self.until, self.env = folder, width, until, env
        self.ended: dict[str, Ended] = {}
        self._turns = itertools.cycle(range(devices)) if devices > 1 else None

    def left(self) -> float:
        """Seconds until everything must be over."""
        return self.until - time.monotonic()

    def json(self, name: str) -> dict | None:
        """What the job wrote, also before it failed."""
        path = self.folder / f"{name}.json"
        with contextlib.suppress(OSError, ValueError):
            return json.loads(path.read_text())
        return None

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Its arrays; empty where there are none."""
        with contextlib.suppress(OSError, ValueError), np.load(self.folder / f"{name}.npz") as found:
            return {key: found[key] for key in found.files}
        return {}

    def run(self, jobs: list[Job]) -> None:
        """Run them all, in their order where nothing else decides."""
        waiting = list(jobs)
        running: list[tuple[Job, subprocess.Popen, float, float]] = []
        known = {job.name for job in jobs} | set(self.ended)
        try:
            while waiting or running:
                for job in list(waiting):
                    if len(running) >= self.width:
                        break
                    if any(name in known and name not in self.ended for name in (*job.after, *job.needs)):
                        continue
                    waiting.remove(job)
                    started = self._start(job)
                    if started is not None:
                        running.append(started)
                running[:] = [one for one in running if not self._over(*one)]
                time.sleep(0.2)
        finally:
            for job, process, begun, _ in running:  # only where something stopped this loop
                self._over(job, process, begun, 0)

    def _over(self, job: Job, process: subprocess.Popen, begun: float, limit: float) -> bool:
        """Whether the job has ended, by itself or by its limit; what it leaves behind ends with it."""
        took, code = time.monotonic() - begun, process.poll()
        if code is None and took < limit:
            return False
        state = "timeout" if code is None else "failed" if code else "done"
        # Its own process group: nothing else is in it.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._end(job, state, took, () if state == "done" else self._last(job.name))
        return True

    def _start(self, job: Job) -> tuple[Job, subprocess.Popen, float, float] | None:
        missing = [name for name in job.needs if name not in self.ended or self.ended[name].state != "done"]
        if missing:
            self._end(job, "skipped", 0, (f"needs {', '.join(missing)}",))
            return None
        if self.left() < (60 if job.optional else 15):
            self._end(job, "skipped", 0, ("no time left",))
            return None
        try:
            words = job.arguments() if callable(job.arguments) else job.arguments
        except Exception as error:  # a result of other jobs that is not as it should be is this job's failure
            self._end(job, "failed", 0, (f"{type(error).__name__}: {error}",))
            return None
        if words is None:
            self._end(job, "skipped", 0, ("nothing to do",))
            return None
        env = {**os.environ, **self.env, **job.env}
        if self._turns and "CUDA_VISIBLE_DEVICES" not in job.env:
            env["CUDA_VISIBLE_DEVICES"] = str(next(self._turns))  # by turns: engines beside each other share it evenly
        paths = [job.env.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]
        env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)  # the caller's packages stay
        with (self.folder / f"{job.name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(HERE / job.script), *words],
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return job, process, time.monotonic(), min(job.limit, self.left())

    def _end(self, job: Job, state: str, seconds: float, last: tuple[str, ...]) -> None:
        self.ended[job.name] = Ended(state, seconds, last)
        print(f"{state:8} {job.name:22} {seconds:6.1f} s  {last[-1][:110] if last else ''}", flush=True)

    def _last(self, name: str, count: int = 12) -> tuple[str, ...]:
        """Last lines of its log; an exception's line first where there is one."""
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        lines = [line.strip()[-300:] for line in lines if line.strip()]
        named = [line for line in lines if "Error" in line.split(":", 1)[0] or "error:" in line]
        return (*lines[-count:], *named[-1:])
