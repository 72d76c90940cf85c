"""Read the build files that FlashInfer writes for ninja: commands, without ninja and without this machine's paths.

Its text is of one shape (flashinfer/jit/cpp_ext.py, `generate_ninja_build_for_op`): variables, the rules `compile`,
`cuda_compile` and `link`, and one `build` line for each object and for the library. Anything else is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from sparkforge.core.errors import CheckFailed

_SETTING = re.compile(r"[A-Za-z0-9_]+ =")
_VARIABLE = re.compile(r"\$\{?([A-Za-z0-9_]+)\}?")


@dataclass(frozen=True)
class Edge:
    """One `build` line.

    Attributes:
        rule: compile, cuda_compile or link.
        out: what it makes.
        inputs: what it reads.
        words: its command, variables expanded.
    """

    rule: str
    out: str
    inputs: tuple[str, ...]
    words: tuple[str, ...]


def edges(text: str) -> list[Edge]:
    """The `build` lines of a file, in order.

    Raises:
        CheckFailed: a line or a rule that FlashInfer did not write when this was written.
    """
    variables: dict[str, str] = {}
    commands: dict[str, str] = {}
    found: list[Edge] = []
    rule = ""
    for line in re.sub(r"\$\n\s*", "", text).splitlines():
        word, _, rest = line.partition(" ")
        if word == "rule":
            rule = rest
        elif word == "build":
            found.append(_edge(line, commands, variables))
        elif _SETTING.match(line):
            name, _, value = line.partition(" =")
            variables[name] = _expanded(value.strip(), variables)
        elif line.startswith("  command = "):
            commands[rule] = line.removeprefix("  command = ")
        elif line.strip() and word != "default" and not line.startswith(("  depfile = ", "  deps = ")):
            raise _unknown(line)
    return found


def _edge(line: str, commands: Mapping[str, str], variables: Mapping[str, str]) -> Edge:
    out, _, rest = line.removeprefix("build ").partition(": ")
    rule, *inputs = rest.split()
    if rule not in commands:
        raise _unknown(line)
    here = {**variables, "in": " ".join(inputs), "out": out}
    return Edge(rule, out, tuple(inputs), tuple(shlex.split(_expanded(commands[rule], here))))


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables[found[1]], text)


def _unknown(line: str) -> CheckFailed:
    return CheckFailed("a build file of FlashInfer is not of the shape that is read here", why=line)
