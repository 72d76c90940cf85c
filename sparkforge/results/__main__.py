"""`python -m sparkforge.results`: the list, or `stamp RESULT`; the same as `invoke proofs` and `.stamp`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sparkforge.core import console
from sparkforge.core.errors import SparkforgeError
from sparkforge.core.store import Store
from sparkforge.inputs.recipes import load_stack
from sparkforge.results import verbs


def main(words: list[str] | None = None) -> int:
    """Parse the words and do it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m sparkforge.results", description=__doc__)
    parser.add_argument("verb", choices=("list", "stamp"), nargs="?", default="list")
    parser.add_argument("result", type=Path, nargs="?", help="result file that is listed in results/proofs.yaml")
    parser.add_argument("--tree", action="append", default=[], metavar="UPSTREAM=ID", help="tree that was read")
    parser.add_argument("--commit", default="", help="commit of the checkout whose files were read")
    said = parser.parse_args(words)
    if (said.verb == "stamp") != (said.result is not None):
        parser.error("stamp takes a result file, list takes none")
    stack = load_stack()
    try:
        if said.verb == "stamp":
            made = verbs.stamp(stack, Store.open(), said.result, trees=said.tree, commit=said.commit)
            console.say(f"{said.result}: {len(made.reads)} sources")
        else:
            print(verbs.table(stack))
    except SparkforgeError as failed:
        print(failed, file=sys.stderr)
        return failed.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
