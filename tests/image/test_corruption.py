"""One byte changed in each kind of input: five clear errors, and nothing written."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec
import pytest

from sparkforge.core.errors import CheckFailed, EnvironmentLacks, SparkforgeError
from sparkforge.core.paths import ROOT
from sparkforge.core.store import Store, remove
from sparkforge.engine import choose
from sparkforge.git.of_store import git_of
from sparkforge.image import chain, request
from sparkforge.inputs import fetch
from sparkforge.inputs.recipes import load_stack
from sparkforge.serving import carried
from sparkforge.serving.load import catalogue

pytestmark = [pytest.mark.online, pytest.mark.engine, pytest.mark.slow]
STACK = load_stack()


def build(store, stack):
    """The cpu image just as `invoke build --target cpu` makes it: it has that command's tag."""
    known = catalogue()
    asked = request.parse(stack, target="cpu")
    said = carried.text(stack.name, asked.target, known)
    return chain.build(store, stack, asked, profiles=said, parts=carried.modules(known))


@pytest.fixture(scope="module")
def built():
    """The user's store after a build of the cpu image; made now where it was not."""
    store = Store.open()
    try:
        choose.choose(store)
    except EnvironmentLacks as lacks:
        pytest.skip(str(lacks))
    build(store, STACK)
    return store


@pytest.fixture
def copied(built):
    """A copy of it by hard links: what a test changes, it replaces."""
    folder = Path(tempfile.mkdtemp(prefix="sparkforge-corrupt-", dir=built.root.parent))
    kept = ("git", "git.stamp", "files", "trees", "overlay", "kernels", "audits", "wheelhouse", "bases", "toolchain")
    for name in (*kept, "requirements", "proofs"):
        if (built.root / name).exists():
            subprocess.run(["cp", "-al", built.root / name, folder / name], check=True)
    yield Store(folder)
    remove(folder)


def flip(path: Path, at: int | None = None) -> None:
    """Change one byte of a file without touching what it is a link of."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 0x01
    beside = path.with_name(f"{path.name}.flipped")
    beside.write_bytes(data)
    beside.chmod(path.stat().st_mode & 0o777)
    beside.replace(path)


def listing(store: Store) -> set[str]:
    """What stands in a store, but for locks, stamps and records of what was looked at."""
    found = set()
    for path in store.root.rglob("*"):
        name = str(path.relative_to(store.root))
        if not name.startswith(("locks", "last")) and not name.endswith((".stamp", ".verified")):
            found.add(name)
    return found


def refused(store: Store, stack=STACK) -> str:
    before = listing(store)
    with pytest.raises(SparkforgeError) as caught:
        build(store, stack)
    assert isinstance(caught.value, CheckFailed)
    assert caught.value.why or caught.value.do
    assert listing(store) == before
    return str(caught.value)


def test_an_untouched_copy_builds(copied):
    assert build(copied, STACK).image


def test_a_byte_of_an_sdist(copied):
    remove(copied.root / "git")  # so that the source is needed again
    git_of(copied)
    file = STACK.upstreams["vllm"].sdist
    flip(fetch.path_of(copied, file))
    said = refused(copied)
    assert file.name in said
    assert file.sha256 in said
    assert "upstreams.vllm.sdist" in said


def test_a_byte_of_a_wheel(copied):
    file = STACK.upstreams["flashinfer"].wheels["linux/amd64"]
    flip(fetch.path_of(copied, file))
    said = refused(copied)
    assert file.name in said
    assert file.sha256 in said


def test_a_byte_of_a_patch(copied, tmp_path):
    there = tmp_path / "vllm" / "0.21.0"
    shutil.copytree(ROOT / STACK.upstreams["vllm"].series, there)
    patch = there / min(path.name for path in there.glob("*.patch"))
    text = patch.read_bytes()
    hunk = text.index(b"\n@@ ")
    context = text.index(b"\n ", text.index(b"\n", hunk + 1)) + 3
    flip(patch, context)
    upstreams = {**STACK.upstreams, "vllm": msgspec.structs.replace(STACK.upstreams["vllm"], series=str(there))}
    said = refused(copied, msgspec.structs.replace(STACK, upstreams=upstreams))
    assert patch.name in said
    assert "does not apply" in said


def test_a_byte_of_a_lock(copied, tmp_path):
    shutil.copytree(ROOT / STACK.locks, tmp_path / "locks")
    locks = sorted((tmp_path / "locks").glob("cpu-*.txt"))
    for lock in locks:
        flip(lock)
    said = refused(copied, msgspec.structs.replace(STACK, locks=str(tmp_path / "locks")))
    assert "was edited or damaged" in said
    assert any(lock.name in said for lock in locks)


@pytest.mark.parametrize("kind", ["overlay", "kernels", "git"])
def test_a_byte_of_a_stored_object(copied, kind):
    if kind == "git":
        victims = sorted((copied.root / "git").glob("objects/pack/*.pack"), key=lambda path: path.stat().st_size)[-1:]
    elif kind == "kernels":
        victims = sorted((copied.root / "kernels").glob("*/sparkforge_kernels/lib/*.so"))
    else:
        victims = sorted((copied.root / "overlay").glob("*/files/vllm/**/*.py"))
    assert victims
    for victim in victims:
        flip(victim)
    said = refused(copied)
    assert "damaged" in said or "was changed" in said
    assert str(copied.root) in said
