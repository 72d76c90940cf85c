"""The command line: invoke's own program with our exit statuses.

`invoke` imports `tasks.py`, which calls `adopt` to turn the running program into ours, so the command stays `invoke`.
Exit status: see `sparkforge.core.errors`; 130 if interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from invoke import main as invoke_main
from invoke import program as invoke_program
from invoke.exceptions import Exit, ParseError

from sparkforge.core.errors import SparkforgeError

_USAGE = 2
_INTERRUPTED = 130


class Program(invoke_program.Program):
    """Invoke's program, with parse errors as status 2 and our errors with their own status."""

    def parse_tasks(self) -> None:
        """Parse the words after the core options."""
        with _usage():
            super().parse_tasks()

    def parse_cleanup(self) -> None:
        """Answer `--list` and `--help`."""
        with _usage():
            super().parse_cleanup()

    def execute(self) -> None:
        """Run the tasks."""
        try:
            super().execute()
        except SparkforgeError as failed:
            raise Exit(f"error: {failed}", code=failed.status) from failed
        except KeyboardInterrupt as stopped:
            raise Exit("interrupted; run the same command again to continue", code=_INTERRUPTED) from stopped
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our output is gone, so there is nobody to tell


@contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except ParseError as wrong:
        hint = f"--help {wrong.context.name}" if wrong.context and wrong.context.name else "--list"
        raise Exit(f"error: {wrong}\n  do:  invoke {hint}", code=_USAGE) from wrong


def adopt() -> None:
    """Turn the running program into ours, and let Python write bytecode (invoke forbids it)."""
    sys.dont_write_bytecode = False
    if type(invoke_main.program) is invoke_program.Program:
        invoke_main.program.__class__ = Program
