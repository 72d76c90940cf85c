"""Whether two answers are one answer: everything must be equal, but for what is listed here.

- Ids, times and where the weights lie (`VARYING`) must be there and of the same type.
- Files in error messages are named from site-packages on.
- Of several types with one name, which one keeps it in /openapi.json and which ones get their module's name in front
  changes from one start of the same server to the next: the types of one name are compared as a set.
- A stream is cut where the server's writer found something to write. When it lags, two tokens come in one event; so
  streams that were cut otherwise are held against each other at the places where both were cut. What counts characters
  from the start of an event (`text_offset`) is left out then.
- Of a request that shared its batches with others by chance (`Ask.loose`), everything that is computed from logits is
  left out, as bf16 sums depend on the batch; counts, ids of the prompt, finish reasons and the form remain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from answers import Answer
from asks import Ask

VARYING = (
    ("system_fingerprint",),  # a hash of vLLM's configuration, in which a switch of the series is one entry more
    ("*", "system_fingerprint"),
    ("id",),  # of a completion, a chat or a message
    ("created",),
    ("*", "id"),  # the same in each event of a stream
    ("*", "created"),
    ("data", "*", "created"),  # of /v1/models
    ("data", "*", "root"),  # the weights' directory, another one in a container
    ("data", "*", "permission", "*", "id"),
    ("data", "*", "permission", "*", "created"),
)
_SITE = re.compile(r'File "[^"]*/site-packages/')
_TYPES = ("components", "schemas")
_MODULE = re.compile(r"^(#/components/schemas/)\w*__")
_COMPUTED = ("text", "content", "token_ids", "tokens", "token_logprobs", "top_logprobs", "text_offset")


def difference(ask: Ask, one: Answer, other: Answer) -> str:
    """Where two answers to one request part, with both values; empty where they are alike."""
    if (one.status, one.kind) != (other.status, other.kind):
        return f"status {one.status} as {one.kind} and {other.status} as {other.kind}"
    left, right = fixed(one.body), fixed(other.body)
    if ask.streamed and isinstance(left, list) and isinstance(right, list):
        cuts, others = _cuts(left), _cuts(right)
        if cuts != others or ask.loose:
            common = set(cuts[-1:]) if ask.loose else set(cuts) & set(others)
            left, right = _joined(left, common), _joined(right, common)
    if ask.loose:
        left, right = _form(left), _form(right)
    return next(_parting(left, right, "body"), "")


def fixed(value: Any, path: tuple[str, ...] = ()) -> Any:
    """A JSON value in which what varies from run to run is replaced by its type."""
    if any(len(path) == len(one) and all(w in {"*", p} for w, p in zip(one, path, strict=True)) for one in VARYING):
        return f"<{type(value).__name__}>"
    if isinstance(value, dict):
        items = {key: fixed(item, (*path, key)) for key, item in value.items()}
        return _by_name(items) if path == _TYPES else items
    if isinstance(value, list):
        return [fixed(item, (*path, "*")) for item in value]
    return _MODULE.sub(r"\1", _SITE.sub('File "', value)) if isinstance(value, str) else value


def _by_name(types: dict[str, Any]) -> dict[str, list[str]]:
    """Types of an interface by their names without modules; several of one name in an order of their own."""
    found: dict[str, list[str]] = {}
    for key, item in types.items():
        found.setdefault(key.rpartition("__")[2], []).append(json.dumps(item))
    return {name: sorted(same) for name, same in sorted(found.items())}


def _tokens(event: Any) -> int:
    choices = event.get("choices") if isinstance(event, dict) else None
    return len(choices[0].get("token_ids") or ()) if choices else 0


def _cuts(events: Sequence[Any]) -> list[int]:
    """Counts of tokens after which a stream was cut."""
    return list(accumulate(_tokens(event) for event in events))


def _joined(events: Sequence[Any], common: set[int]) -> list[Any]:
    """Events put together so that each with tokens ends at one of these counts, but for the last; without offsets."""
    found: list[Any] = []
    pending: Any = None
    for event, count in zip(events, _cuts(events), strict=True):
        if _tokens(event):
            pending = event if pending is None else _merged(pending, event)
            if count not in common:
                continue
            event, pending = pending, None  # noqa: PLW2901  the joined one stands for its last part
        found.append(event)
    return [_without_offsets(event) for event in (found if pending is None else [*found, pending])]


def _without_offsets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_offsets(item) for name, item in value.items() if name != "text_offset"}
    return [_without_offsets(item) for item in value] if isinstance(value, list) else value


def _merged(first: Any, second: Any, key: str = "") -> Any:
    """Two pieces of one thing: texts and lists one after the other, of all else what comes last."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, dict) and isinstance(second, dict):
        names = dict.fromkeys((*first, *second))
        return {name: _merged(first.get(name), second.get(name), name) for name in names}
    if isinstance(first, list) and isinstance(second, list):
        return [_merged(first[0], second[0])] if key == "choices" else first + second
    if isinstance(first, str) and isinstance(second, str) and key in {"text", "content"}:
        return first + second
    return second


def _form(value: Any, key: str = "") -> Any:
    """A JSON value without what is computed from logits: a list of such keeps its length."""
    if isinstance(value, dict):
        return {name: _form(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return len(value) if key in _COMPUTED else [_form(item) for item in value]
    return f"<{type(value).__name__}>" if key in _COMPUTED else value


def _parting(left: Any, right: Any, path: str) -> Iterator[str]:
    """Each place in which two JSON values differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys((*left, *right)):
            if key not in left or key not in right:
                yield f"{path}.{key} is in the {'second' if key in right else 'first'} alone"
            else:
                yield from _parting(left[key], right[key], f"{path}.{key}")
    elif isinstance(left, list) and isinstance(right, list):
        for place, (a, b) in enumerate(zip(left, right, strict=False)):
            yield from _parting(a, b, f"{path}[{place}]")
        if len(left) != len(right):
            yield f"{path} has {len(left)} and {len(right)} entries"
    elif type(left) is not type(right) or left != right:
        yield f"{path} is {left!r:.120} and {right!r:.120}"
