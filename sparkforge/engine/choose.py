"""Which engine builds: the first Docker client that works, else buildah; and why.

An engine works if it built the proof. That costs about a second, so a passed proof is kept in the store for this
program and this version of the engine. A failed one is repeated each time: a person may have just mended it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from sparkforge.core.errors import BadInput, EnvironmentLacks
from sparkforge.core.hashing import key_of
from sparkforge.core.store import Store, write_file
from sparkforge.engine.buildah import Buildah
from sparkforge.engine.docker import clients
from sparkforge.engine.engine import Able, Engine

NAMES = ("auto", "docker", "buildah")


def candidates(name: str = "auto") -> list[Engine]:
    """Engines of this machine, the preferred one first.

    Raises:
        BadInput: no engine has that name.
    """
    if name not in NAMES:
        raise BadInput(f"there is no engine {name!r}", why=f"engines: {', '.join(NAMES)}", do="--engine auto")
    found: list[Engine] = []
    if name in ("auto", "docker"):
        found += clients()
    program = shutil.which("buildah")
    if name in ("auto", "buildah") and program:
        found.append(Buildah(program))
    return found


def choose(store: Store, name: str = "auto") -> tuple[Engine, str]:
    """The engine to build with, and why it is that one.

    The answer is kept, so that the next build does not try again what failed before. It is dropped when that engine
    no longer works, and by `invoke setup`.

    Raises:
        EnvironmentLacks: none works; the error says why each does not.
    """
    found = candidates(name)
    kept = _answer(store, name)
    if kept.is_file():
        said = json.loads(kept.read_bytes())
        for engine in found:
            if engine.program == said["program"] and proven(store, engine).able:
                return engine, str(said["why"])
    refused: list[str] = []
    for engine in found:
        verdict = proven(store, engine)
        if verdict.able:
            why = "; ".join([verdict.reason, *(f"not {line}" for line in refused)])
            write_file(kept, json.dumps({"program": engine.program, "why": why}).encode())
            return engine, why
        refused.append(verdict.reason)
    raise EnvironmentLacks(
        "no working container engine found" if name == "auto" else f"{name} does not work here",
        why="\n       ".join(refused) or "neither docker nor buildah is installed",
        do="invoke setup",
    )


def forget(store: Store) -> None:
    """Try every engine again the next time."""
    for name in NAMES:
        _answer(store, name).unlink(missing_ok=True)


def _answer(store: Store, name: str) -> Path:
    return store.root / "proofs" / f"chosen-{name}.json"


def find(store: Store, tag: str, name: str = "auto") -> Engine:
    """The working engine that holds an image.

    Raises:
        EnvironmentLacks: no engine works.
        BadInput: none has the image.
    """
    able = [engine for engine in candidates(name) if proven(store, engine).able]
    if not able:
        choose(store, name)
    for engine in able:
        if engine.has(tag):
            return engine
    looked = ", ".join(engine.program for engine in able)
    raise BadInput(f"there is no image {tag}", why=f"looked in: {looked}", do="invoke build")


def proven(store: Store, engine: Engine) -> Able:
    """The verdict on an engine; from the store, if it passed and is still the same."""
    answer = engine.answer()
    if answer is None:
        return engine.prove()
    status = Path(engine.program).stat()
    key = key_of(engine.name, engine.program, status.st_size, status.st_mtime_ns, answer)
    kept = store.path("proofs", key)
    if kept.is_file():
        return Able(**json.loads(kept.read_bytes()))
    verdict = engine.prove()
    if verdict.able:
        kept.parent.mkdir(parents=True, exist_ok=True)
        said = {"able": True, "reason": verdict.reason, "version": verdict.version}
        write_file(kept, json.dumps(said).encode())
    return verdict
