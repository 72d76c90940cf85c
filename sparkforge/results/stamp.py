"""Writing into a result what it read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sparkforge.core.errors import BadInput
from sparkforge.core.hashing import sha256_bytes
from sparkforge.core.store import write_file
from sparkforge.git.repository import Git
from sparkforge.results.identity import Sources
from sparkforge.results.proofs import KEY, Proof, Stamp, result

_INDENT = re.compile(rb"^\{\n( +)")


def stamp(
    path: Path, proof: Proof, sources: Sources, git: Git, *, trees: Mapping[str, str] | None = None, commit: str = ""
) -> Stamp:
    """Write the identity of its sources into a result, over an earlier stamp.

    The files of a tree are those of the tree that the result itself names, where it names one (`tree`, `trees` or
    `facts.trees`), and not those of the series as it is now: a result may be stamped later than it was made.

    Args:
        path: the result.
        proof: its entry.
        sources: of the checkout.
        git: repository that holds the trees.
        trees: tree ids by upstream, over what the result says.
        commit: commit of the checkout whose files were read; "" takes them as they stand.

    Raises:
        BadInput: a pattern names nothing, or a tree or commit is not there.
    """
    said = result(path)
    then = _trees(said, sources) | dict(trees or {})
    now = sources.found(proof.reads)
    named = {name.partition(":")[0] for name in now if ":" in name}
    for upstream in named - then.keys():
        raise BadInput(
            f"{path.name} does not say which tree of {upstream} it read",
            why=f"it reads {upstream}:..., and has none of the keys tree, trees, facts.trees",
            do=f"--tree {upstream}=ID  (the series leads to the id in its file `tree`)",
        )
    reads = {
        name: _then(sources, git, name, then) if ":" in name else _checkout(sources, commit, name, value)
        for name, value in now.items()
    }
    made = Stamp(reads, {upstream: then[upstream] for upstream in sorted(named)})
    write_file(path, _written(path.read_bytes(), said | {KEY: msgspec.to_builtins(made)}))
    return made


def _trees(said: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    facts = said.get("facts")
    several = said.get("trees") or (facts.get("trees") if isinstance(facts, dict) else None) or {}
    one = said.get("tree")
    if isinstance(one, str) and "flashinfer" in sources.upstreams:
        return {"flashinfer": one}
    return {str(name): str(tree) for name, tree in several.items()}


def _then(sources: Sources, git: Git, name: str, trees: Mapping[str, str]) -> str:
    """Identity of a tree's file in the tree that was read."""
    upstream, _, path = name.partition(":")
    tree = trees[upstream]
    if not path:
        return sources.of_pin(upstream)
    if not git.has(f"{tree}^{{tree}}"):
        raise BadInput(f"the store has no tree {tree}", why=f"{upstream} was read at it", do="repeat the proof")
    blob = _blob(git, tree, path)
    if not blob:
        raise BadInput(f"{name} is not in the tree {tree}", why="the proof reads it", do="correct results/proofs.yaml")
    # A file that is patched now, or was then, is named by its content; one that is the same in both is the pin's.
    patched = path in sources.series[upstream].blobs
    return (
        f"blob {blob}"
        if patched or blob != _blob(git, _recorded(sources, upstream), path)
        else sources.of_pin(upstream)
    )


def _blob(git: Git, tree: str, path: str) -> str:
    done = git.done("rev-parse", "--verify", "--quiet", f"{tree}:{path}", check=False)
    return "" if done.code else done.text


def _recorded(sources: Sources, upstream: str) -> str:
    return (sources.root / sources.upstreams[upstream].series / "tree").read_text().strip()


def _checkout(sources: Sources, commit: str, name: str, value: str) -> str:
    if not commit:
        return value
    done = Git(sources.root / ".git").done("cat-file", "blob", f"{commit}:{name}", check=False)
    if done.code:
        raise BadInput(f"{name} is not in commit {commit}", why=done.err.decode(errors="replace").strip())
    return sha256_bytes(done.out)


def _written(before: bytes, said: Mapping[str, Any]) -> bytes:
    """The result again, indented as it was."""
    found = _INDENT.match(before)
    text = json.dumps(said, indent=len(found[1]) if found else None, ensure_ascii=False)
    return text.encode() + b"\n" * before.endswith(b"\n")
