"""The command line: invoke's own program with our exit statuses.

`invoke` finds `tasks.py` and runs it; importing `tasks.py` turns the running program into ours (`adopt`), so the
command stays `invoke`. Exit status: 0 done, 1 a check failed, 2 wrong usage or bad input, 3 the environment
lacks something, 130 interrupted. Errors are sentences on standard error; a traceback is a bug.
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
    """Invoke's program, with parse errors as status 2 and our errors as theirs."""

    def parse_tasks(self) -> None:
        """Parse the words after the core options; a wrong one is wrong usage."""
        with _usage():
            super().parse_tasks()

    def parse_cleanup(self) -> None:
        """Answer `--list` and `--help`; help on a task that is not there is wrong usage."""
        with _usage():
            super().parse_cleanup()

    def execute(self) -> None:
        """Run the tasks; what they raise for a person is printed, not traced."""
        try:
            super().execute()
        except SparkforgeError as failed:
            raise Exit(f"error: {failed}", code=failed.status) from failed
        except KeyboardInterrupt as stopped:
            raise Exit("interrupted; run the same again to continue", code=_INTERRUPTED) from stopped
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our output went away; nobody is left to tell


@contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except ParseError as wrong:
        hint = (
            "invoke --list"
            if wrong.context is None or not wrong.context.name
            else f"invoke --help {wrong.context.name}"
        )
        raise Exit(f"error: {wrong}\n  do:  {hint}", code=_USAGE) from wrong


def adopt() -> None:
    """Make the program that is running `tasks.py` ours, and let Python keep bytecode (invoke forbids it)."""
    sys.dont_write_bytecode = False
    if type(invoke_main.program) is invoke_program.Program:
        invoke_main.program.__class__ = Program
