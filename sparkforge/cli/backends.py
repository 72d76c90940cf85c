"""Tasks that ask the patched package."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, STACK, opened
from sparkforge.core import console
from sparkforge.core.errors import BadInput


@task(
    help={
        "capability": "compute capability of the device, which need not be here",
        "as-installed": "check whether FlashInfer's kernels can be compiled here, instead of assuming it",
        "json": JSON,
        "stack": STACK,
    }
)
def backends(
    _: Context, capability: str = "12.1", as_installed: bool = False, json: bool = False, stack: str = "vllm-0.21"
) -> None:
    """Show what the patched vLLM chooses for gpt-oss-120b, for each flag, on a device of some capability."""
    from sparkforge.core import proc
    from sparkforge.core.paths import IMAGES
    from sparkforge.environments import patched, venv
    from sparkforge.patches import place, trees

    of_stack, store = opened(stack, as_json=json)
    python = venv.ensure(store, of_stack).python
    ids = {name: trees.of(store, of_stack, name).id for name in of_stack.upstreams}
    words = ["--json", "--capability", capability, *(["--as-installed"] if as_installed else [])]
    with patched.default(store, of_stack.upstreams, place.places(of_stack, store), python) as env:
        variables = {**os.environ, **env.lay(ids), "VLLM_LOGGING_LEVEL": "ERROR"}
        done = proc.run([python, IMAGES / "checks" / "backends.py", *words], env=variables, accept=(0, 2))
    if done.code:
        raise BadInput(f"{capability!r} is not a compute capability", do="--capability 12.1")
    if json:
        print(done.text)
        return
    rows = msgspec.json.decode(done.out)["rows"]
    print(console.table(("of", "flags", "chosen", "why"), [_cells(row) for row in rows]))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    flags = [f"{name}={value}" for name, value in row["flags"].items() if value != "auto"]
    return (row["what"], "\n".join(flags) or "(defaults)", str(row["chosen"]), row["why"])
