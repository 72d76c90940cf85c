"""Read dependency files of compilers, and the build files that FlashInfer writes for ninja."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from sparkforge.core.errors import CheckFailed

_SETTING = re.compile(r"[A-Za-z0-9_]+ =")
_VARIABLE = re.compile(r"\$\{?([A-Za-z0-9_]+)\}?")
_WORD = re.compile(r"(?:\\.|[^\\\s])+")
_ESCAPED = re.compile(r"\\([ #\\])")


def dependencies(text: str) -> list[str]:
    r"""Files that a compiler read, from the rule that `-MD` writes: as written, each once.

    >>> dependencies("a.o: a.cu b\\ c.h \\\n d.h\n")
    ['a.cu', 'b c.h', 'd.h']
    """
    rule = text.replace("\\\n", " ").partition(": ")[2].partition("\n")[0]
    return list(dict.fromkeys(_ESCAPED.sub(r"\1", word).replace("$$", "$") for word in _WORD.findall(rule)))


@dataclass(frozen=True)
class NinjaEdge:
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


def edges(text: str) -> list[NinjaEdge]:
    """The `build` lines of a build file, in order.

    FlashInfer's files have one shape (flashinfer/jit/cpp_ext.py, `generate_ninja_build_for_op`): variables, the rules
    `compile`, `cuda_compile` and `link`, and a `build` line for each object and for the library.

    Raises:
        CheckFailed: a line in another format.
    """
    variables: dict[str, str] = {}
    commands: dict[str, str] = {}
    found: list[NinjaEdge] = []
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


def _edge(line: str, commands: Mapping[str, str], variables: Mapping[str, str]) -> NinjaEdge:
    out, _, rest = line.removeprefix("build ").partition(": ")
    rule, *inputs = rest.split()
    if rule not in commands:
        raise _unknown(line)
    here = {**variables, "in": " ".join(inputs), "out": out}
    return NinjaEdge(rule, out, tuple(inputs), tuple(shlex.split(_expanded(commands[rule], here))))


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables[found[1]], text)


def _unknown(line: str) -> CheckFailed:
    return CheckFailed("a build file of FlashInfer has a shape that is not known here", why=line)
