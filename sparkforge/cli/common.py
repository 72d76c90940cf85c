"""What several tasks share: printing JSON, and opening the stack and the store."""

from __future__ import annotations

from typing import Any

import msgspec

from sparkforge.core import console
from sparkforge.core.store import Store
from sparkforge.inputs.recipes import Stack, load_stack

STACK = "name of a stack in recipes/stacks, or the path of one"
JSON = "print the result as JSON and nothing else"


def opened(stack: str, *, as_json: bool = False) -> tuple[Stack, Store]:
    """A stack and the store; with JSON, nothing else is said to people."""
    console.quiet(on=as_json)
    return load_stack(stack), Store.open()


def put(value: Any) -> None:
    """JSON on standard output."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
