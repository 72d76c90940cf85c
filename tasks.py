"""The command line: names the library's functions and parses words, nothing else. `invoke --list` shows it."""

from __future__ import annotations

from sparkforge.core import program

program.adopt()

from sparkforge.cli import namespace  # noqa: E402  bytecode may be kept only from here on

ns = namespace()
