"""Read what a compiler says that it read: a rule of make, as `-MD` writes it."""

from __future__ import annotations

import re

_WORD = re.compile(r"(?:\\.|[^\\\s])+")
_ESCAPED = re.compile(r"\\([ #\\])")


def read(text: str) -> list[str]:
    r"""Paths behind the colon, as they were written, each once.

    >>> read("a.o: a.cu b\\ c.h \\\n d.h\n")
    ['a.cu', 'b c.h', 'd.h']
    """
    _, _, behind = text.replace("\\\n", " ").partition(": ")
    words = (_ESCAPED.sub(r"\1", word).replace("$$", "$") for word in _WORD.findall(behind.partition("\n")[0]))
    return list(dict.fromkeys(words))
