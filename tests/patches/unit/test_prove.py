"""`prove` with a real interpreter, a real package in a real virtual environment, and tests of every kind."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import msgspec
import pytest
from patch_forge import make_forge, message

from sparkforge.core.errors import BadInput, EnvironmentLacks
from sparkforge.core.store import Store
from sparkforge.environments import patched, prove
from sparkforge.environments.cuda import Cuda
from sparkforge.environments.verdict import ProofVerdict
from sparkforge.inputs.recipes import Build, File, Mapping, Upstream

PIN = {
    "pkg/__init__.py": b"",
    "pkg/code.py": b"def one():\n    return 1\n\n\ndef checked(x):\n    assert x\n",
    "pkg/other.py": b"KIND = 'pin'\n",
    "pkg/unshipped.py": b"",
    "docs/readme.md": b"pin\n",
}
CODE = PIN["pkg/code.py"]
TWO = CODE + b"\n\ndef two():\n    return 2\n"
THREE = TWO + b"\n\ndef three():\n    return 3\n"
TESTS = {
    # one file, what must come of it
    "good": (
        (
            "import os, pathlib, pytest\nimport pkg.code\n\n"
            "def test_two():\n    assert hasattr(pkg.code, 'two')\n    assert pkg.code.two() == 2\n\n"
            "def test_one():\n    assert pkg.code.one() == 1\n\n"
            "def test_tree():\n    tree = pathlib.Path(os.environ['SPARKFORGE_TREE_DEMO'])\n"
            "    assert 'two' in (tree / 'pkg/code.py').read_text()\n    assert (tree / 'docs/readme.md').is_file()\n\n"
            "@pytest.mark.skip(reason='needs a GPU')\ndef test_gpu():\n    pass\n"
        ),
        ProofVerdict.PROVED,
    ),
    "raises": (
        (
            "import pytest, pkg.code\n\ndef test_it():\n"
            "    with pytest.raises(TypeError):\n        getattr(pkg.code, 'two', lambda *_: 0)(1)\n"
        ),
        ProofVerdict.PROVED,
    ),
    "blind": ("import pkg.code\n\ndef test_one():\n    assert pkg.code.one() == 1\n", ProofVerdict.PASSES_WITHOUT),
    "toplevel": ("from pkg.code import two\n\ndef test_two():\n    assert two() == 2\n", ProofVerdict.ERRORS_WITHOUT),
    "inside": ("def test_two():\n    from pkg.code import two\n    assert two() == 2\n", ProofVerdict.ERRORS_WITHOUT),
    "theirs": (
        "import pkg.code\n\ndef test_it():\n    pkg.code.checked(hasattr(pkg.code, 'two'))\n",
        ProofVerdict.ERRORS_WITHOUT,
    ),
    "fixture": (
        (
            "import pytest, pkg.code\n\n@pytest.fixture\ndef two():\n    assert hasattr(pkg.code, 'two')\n\n"
            "def test_it(two):\n    pass\n"
        ),
        ProofVerdict.ERRORS_WITHOUT,
    ),
    "mixed": (
        "import pkg.code\n\ndef test_a():\n    assert hasattr(pkg.code, 'two')\n\ndef test_b():\n    pkg.code.two()\n",
        ProofVerdict.ERRORS_WITHOUT,
    ),
    "never": ("import pkg.code\n\ndef test_it():\n    assert pkg.code.one() == 3\n", ProofVerdict.FAILS_WITH),
    "skips": ("import pytest\n\ndef test_it():\n    pytest.skip('no GPU')\n", ProofVerdict.SKIPPED),
    "unlike": (
        (
            "import pytest, pkg.code\n\ndef test_a():\n    assert hasattr(pkg.code, 'two')\n"
            "    pytest.skip('no GPU')\n\n"
            "def test_b():\n    pass\n"
        ),
        ProofVerdict.SKIPPED,
    ),
    "dies": ("import os\n\ndef test_it():\n    os._exit(7)\n", ProofVerdict.ERRORS_WITHOUT),
    "empty": ("import pkg.code\n", ProofVerdict.ERRORS_WITHOUT),
}
NAMES = {name: f"tests/patches/demo/test_{name}.py" for name in TESTS}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A virtual environment whose `pkg` is another build of the pin: one file differs, one is its own."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    site = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    for path, data in PIN.items():
        if path.startswith("pkg/") and "unshipped" not in path:
            (site / path).parent.mkdir(exist_ok=True)
            (site / path).write_bytes(data)
    (site / "pkg/other.py").write_bytes(b"KIND = 'cpu'\n")
    (site / "pkg/compiled.py").write_bytes(b"ours = True\n")
    return folder, site


@pytest.fixture
def demo(tmp_path):
    forge = make_forge(tmp_path, PIN)
    for name, (text, _) in TESTS.items():
        forge.test_file(NAMES[name], text)
    forge.test_file("tests/conftest.py", "raise RuntimeError('of another Python')\n")
    return forge


def upstream():
    return Upstream(
        package="pkg",
        release="1.0",
        git="",
        commit="0" * 40,
        sdist=File("pkg-1.0.tar.gz", "0" * 64),
        wheels={},
        series="",
        overlay=(Mapping("pkg/", "pkg/"),),
    )


def proofs(forge, home, store, **options):
    with patched.default(store, {"demo": upstream()}, [forge.place], home[0] / "bin/python") as env:
        return prove.prove([forge.place], env, store, **options)


def lay(forge, tests, *more):
    forge.write(forge.patches((message("V-01", tests=[NAMES[name] for name in tests]), {"pkg/code.py": TWO}), *more))


@pytest.mark.slow
def test_every_kind_of_test_gets_its_verdict(demo, home, tmp_path):
    store = Store.open(tmp_path / "store")
    lay(demo, TESTS)
    found = {proof.test: proof for proof in proofs(demo, home, store, jobs=2)}
    assert {name: found[NAMES[name]].verdict for name in TESTS} == {name: kind for name, (_, kind) in TESTS.items()}
    good = found[NAMES["good"]]
    assert [name.rpartition("::")[2] for name in good.proving] == ["test_two", "test_tree"]
    assert len(good.passed) == 3
    assert "needs a GPU" in good.skipped[0]
    assert all(proof.why for proof in found.values() if not proof.proved)
    assert "status 7" in found[NAMES["dies"]].why
    # Only what is proved is kept, and nothing else stays behind.
    again = {proof.test: proof for proof in proofs(demo, home, store, only=["V-01"])}
    assert {name for name in TESTS if again[NAMES[name]].cached} == {"good", "raises"}
    assert list((store.root / "lay").iterdir()) == []


@pytest.mark.slow
def test_a_proof_holds_until_something_that_it_read_changes(demo, home, tmp_path):
    store = Store.open(tmp_path / "store")
    lay(demo, ["raises"])
    cached = []
    for act in (
        lambda: None,
        lambda: None,
        lambda: demo.test_file("tests/patches/demo/test_unrelated.py"),
        lambda: demo.test_file("tests/patches/demo/conftest.py", "# new\n"),
        lambda: demo.test_file(NAMES["raises"], TESTS["raises"][0] + "\n"),
        lambda: lay(demo, ["raises"], (message("V-02", tests=[NAMES["raises"]]), {"docs/readme.md": b"x\n"})),
    ):
        act()
        cached.append(proofs(demo, home, store, only=["V-01"])[0].cached)
    assert cached == [False, True, True, False, False, False]


def test_a_proof_reads_its_folder_without_other_tests_and_the_conftests_above(tmp_path):
    top = tmp_path / "patches"
    read = {"demo/test_it.py", "demo/host/it.cpp", "conftest.py"}
    for name in (*read, "demo/test_other.py", "demo/host/__pycache__/it.pyc", "../conftest.py"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("")
    assert {str(path.relative_to(top)) for path in prove._read(top / "demo/test_it.py")} == read


@pytest.mark.slow
def test_what_needs_a_patch_goes_with_it(demo, home, tmp_path):
    lay(
        demo,
        ["good"],
        (message("V-02", "code: by its lines", tests=[NAMES["blind"]]), {"pkg/code.py": THREE}),
        (message("V-03", "docs: by its word", depends=["V-01"], tests=[NAMES["blind"]]), {"docs/readme.md": b"x\n"}),
        (message("V-04", "docs: not at all", tests=[NAMES["blind"]]), {"docs/more.md": b"x\n"}),
    )
    (proof,) = proofs(demo, home, Store.open(tmp_path / "store"), only=["0001-core-change-a-thing.patch"])
    assert (proof.verdict, proof.left_out) == (ProofVerdict.PROVED, ("V-02", "V-03"))
    with pytest.raises(BadInput, match="no patch 'V-09'"):
        proofs(demo, home, Store.open(tmp_path / "store"), only=["V-09"])


def test_packages_are_the_trees_and_the_environment_is_never_written(demo, home, tmp_path):
    store, (folder, site) = Store.open(tmp_path / "store"), home
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    tree = demo.git.text(
        "rev-parse", demo.made(demo.commit, {"pkg/code.py": TWO, "pkg/new.py": b"x = 1\n", "pkg/other.py": None}) + ":"
    )
    with patched.default(store, {"demo": upstream()}, [demo.place], folder / "bin/python") as env:
        made = env.lay({"demo": tree})
        pin = env.lay({"demo": demo.place.tree})
        at, other = (Path(one["PYTHONPATH"].split(":")[0], "pkg") for one in (made, pin))
        assert {path.name for path in at.glob("*.*")} == {
            "__init__.py",
            "code.py",
            "compiled.py",
            "new.py",
            "sparkforge_tree.txt",
        }
        assert (at / "code.py").read_bytes() == TWO
        assert (at / "sparkforge_tree.txt").read_text() == f"{tree}\n"
        assert (other / "other.py").read_bytes() == PIN["pkg/other.py"]  # not the other build's
        assert (other / "code.py").read_bytes() == CODE
        assert (Path(made["SPARKFORGE_TREE_DEMO"]) / "pkg/new.py").is_file()
        said = subprocess.run(
            [env.python, "-c", "import pkg.code, pytest; print(pkg.code.two())"],
            env={"PYTHONPATH": made["PYTHONPATH"]},
            capture_output=True,
            check=True,
        )
        assert said.stdout == b"2\n"
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before


def test_the_toolchain_is_named_to_the_tests_and_is_part_of_what_was_proved(demo, home, tmp_path):
    store, said = Store.open(tmp_path / "store"), []
    for cuda in (None, Cuda({"SPARKFORGE_NVCC": "/some/nvcc"}, "13.0"), Cuda({}, "13.1")):
        with patched.default(store, {"demo": upstream()}, [demo.place], home[0] / "bin/python", cuda) as env:
            said.append((env.lay({"demo": demo.place.tree}).get("SPARKFORGE_NVCC"), env.identity))
    assert [nvcc for nvcc, _ in said] == [None, "/some/nvcc", None]
    assert len({identity for _, identity in said}) == len(said)


def test_another_build_is_announced_by_the_upstreams_name(demo, home, tmp_path):
    """As the overlay does it: what asks for the version of `pkg` learns that this is the CPU build."""
    folder, site = home
    of_cpu = msgspec.structs.replace(upstream(), cpu=Build("pkg-cpu", {}))
    info = site / "pkg_cpu-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pkg-cpu\nVersion: 1.0\n")
    asked = [folder / "bin/python", "-c", "import importlib.metadata as m; print(m.version('pkg'))"]

    def version(of):
        store = Store.open(tmp_path / "store")
        with patched.default(store, {"demo": of}, [demo.place], folder / "bin/python") as env:
            variables = {"PYTHONPATH": env.lay({"demo": demo.place.tree})["PYTHONPATH"]}
            return subprocess.run(asked, env=variables, capture_output=True, check=False).stdout

    try:
        assert version(of_cpu) == b"1.0+cpu\n"
        assert version(upstream()) == b""
    finally:
        shutil.rmtree(info)


def test_nothing_of_an_earlier_run_is_read_and_nothing_is_left_at_home(demo, home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    demo.test_file(
        "tests/patches/demo/test_kept.py",
        "import os, pathlib\nimport pkg.code\n\ndef test_it():\n    kept = pathlib.Path(os.environ['XDG_CACHE_HOME'])\n"
        "    assert not kept.exists()\n    kept.mkdir()\n    assert hasattr(pkg.code, 'two')\n",
    )
    demo.write(demo.patches((message("V-01", tests=["tests/patches/demo/test_kept.py"]), {"pkg/code.py": TWO})))
    (found,) = proofs(demo, home, Store.open(tmp_path / "store"))
    assert found.verdict is ProofVerdict.PROVED
    assert not (tmp_path / "kept").exists()


def test_a_package_that_is_not_installed_is_said(demo, tmp_path):
    venv.create(tmp_path / "bare", symlinks=True)
    with pytest.raises(EnvironmentLacks, match="pkg is not installed"):
        proofs(demo, [tmp_path / "bare"], Store.open(tmp_path / "store"))
