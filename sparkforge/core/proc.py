"""The one door to subprocesses: every command is quoted, traced, bounded and judged here."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.errors import CheckFailed, EnvironmentLacks, SparkforgeError

_TAIL_LINES = 15


@dataclass(frozen=True)
class Done:
    """A finished command: words, exit status (negative for a signal), its output unless streamed, wall time."""

    argv: tuple[str, ...]
    code: int
    out: bytes
    err: bytes
    seconds: float

    @property
    def text(self) -> str:
        """Standard output as text, without the last line feed."""
        return self.out.decode(errors="replace").rstrip("\n")

    def demand(self, accept: Sequence[int] = (0,), error: type[SparkforgeError] = CheckFailed, do: str = "") -> Done:
        """This, unless its exit status is a failure.

        Raises:
            SparkforgeError: of class `error`, with the command and the last lines of its output.
        """
        if self.code in accept:
            return self
        killed = f"was killed by signal {-self.code}" if self.code < 0 else f"ended with status {self.code}"
        said = tail(self.err) or tail(self.out)
        raise error(f"{Path(self.argv[0]).name} {killed}", why=f"{quoted(self.argv)}\n{said}".rstrip(), do=do)


def quoted(argv: Sequence[str | Path]) -> str:
    """Command as one could paste it into a shell."""
    return shlex.join(str(word) for word in argv)


def tail(data: bytes, lines: int = _TAIL_LINES) -> str:
    """Last lines of a program's output, as text."""
    return "\n".join(data.decode(errors="replace").rstrip().splitlines()[-lines:])


def announced(words: Sequence[str]) -> float:
    """Show a command that is about to run where SPARKFORGE_TRACE asks for it; returns the time."""
    if os.environ.get("SPARKFORGE_TRACE"):
        print(f"+ {quoted(words)}", file=sys.stderr, flush=True)
    return time.monotonic()


def not_found(words: Sequence[str], cwd: Path | None, do: str = "") -> SparkforgeError:
    """The error for a command that could not be started."""
    if cwd is not None and not cwd.is_dir():
        return CheckFailed(f"{words[0]} cannot run in a directory that is not there", why=str(cwd))
    return EnvironmentLacks(f"{words[0]} is not installed", why=f"needed for: {quoted(words)}", do=do or "invoke setup")


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    check: bool = True,
    accept: Sequence[int] = (0,),
    timeout: float | None = None,
    stream: bool = False,
    error: type[SparkforgeError] = CheckFailed,
    do: str = "",
) -> Done:
    """Run a command to its end.

    Args:
        argv: program and words; never a shell line.
        cwd: working directory.
        env: the whole environment; None inherits ours.
        stdin: bytes for standard input; None closes it.
        check: raise if the exit status is not in `accept`; otherwise the caller judges it.
        accept: exit statuses that are not failures.
        timeout: seconds after which the command is killed.
        stream: let the command write to our terminal instead of keeping its output.
        error: class of the error for a failure.
        do: the remedy in that error.

    Raises:
        EnvironmentLacks: the program is not installed.
        SparkforgeError: of class `error`, with the command and the last lines of its output.
    """
    words = tuple(str(word) for word in argv)
    begun = announced(words)
    pipe = None if stream else subprocess.PIPE
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=None if env is None else dict(env),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            stdout=pipe,
            stderr=pipe,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as lost:
        raise not_found(words, cwd, do) from lost
    except subprocess.TimeoutExpired as late:
        raise error(f"{words[0]} did not end within {timeout:.0f} s", why=quoted(words), do=do) from late
    result = Done(words, done.returncode, done.stdout or b"", done.stderr or b"", time.monotonic() - begun)
    return result.demand(accept, error, do) if check else result


@dataclass(frozen=True)
class Used:
    """What a command and the children that it waited for took; `peak_bytes` is the largest resident size of one."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def measured(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str],
    error: type[SparkforgeError] = CheckFailed,
    do: str = "",
) -> Used:
    """Run a command to its end and measure it; its output is shown only if it fails. Raises as `run`."""
    words = tuple(str(word) for word in argv)
    begun = announced(words)
    with tempfile.TemporaryFile() as said:
        try:
            child = subprocess.Popen(words, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        except FileNotFoundError as lost:
            raise not_found(words, cwd, do) from lost
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            child.wait()
            raise
        child.returncode = code = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - begun
        said.seek(0)
        Done(words, code, b"" if code == 0 else said.read(), b"", seconds).demand(error=error, do=do)
    return Used(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
