"""What a result says of its run: written by the program that ran, bound to its content by a hash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkforge.core.paths import ROOT
from sparkforge.results import provenance

PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from sparkforge.results.provenance import Run
run = Run(__file__)
{work}
run.write(Path(sys.argv[1]), {{"samples": [1.5, 2], "where": Path("x")}})
"""


@pytest.fixture
def checkout(tmp_path):
    """A small checkout that holds the writer alone: the program runs where nothing else of ours is."""
    root = tmp_path / "checkout"
    for name in ("sparkforge/__init__.py", "sparkforge/results/__init__.py", "sparkforge/results/provenance.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes((ROOT / name).read_bytes())
    (root / "tools").mkdir()
    (root / "tools/helping.py").write_text("value = 1\n")
    old(root)
    return root


def old(folder: Path) -> None:
    """As files are that lay there before the run."""
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9))


def git(root: Path, *words: str) -> str:
    said = ["git", "-C", root, "-c", "user.name=x", "-c", "user.email=x@example.invalid", *words]
    return subprocess.run(said, check=True, capture_output=True, text=True).stdout.strip()


def made(checkout: Path, work: str = "", **env: str) -> dict:
    program = checkout / "tools/measure.py"
    program.write_text(PROGRAM.format(work=work))
    os.utime(program, (1e9, 1e9))
    out = checkout.parent / "out.json"
    words = [sys.executable, "-S", program, out, checkout]
    subprocess.run(words, check=True, env={"PATH": os.environ["PATH"]} | env)
    return json.loads(out.read_bytes())


def test_a_result_says_what_ran_where_and_when(checkout):
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "x")
    said = made(checkout)
    record = said["provenance"]
    assert (said["samples"], said["where"]) == ([1.5, 2], "x")
    assert record["program"] == "tools/measure.py"
    assert record["command"] == ["tools/measure.py", "out.json", "checkout"]
    assert record["commit"] == {"id": git(checkout, "rev-parse", "HEAD"), "dirty": [], "from": "git"}
    assert record["begun"] <= record["ended"]
    assert record["machine"]["cpus"] >= 1
    assert record["versions"]["python"] == sys.version.split()[0]
    assert record["wrong"] == []


def test_a_dirty_checkout_is_said_to_be_one(checkout):
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "x")
    (checkout / "tools/helping.py").write_text("value = 2\n")
    assert made(checkout)["provenance"]["commit"]["dirty"] == ["tools/helping.py"]


def test_where_there_is_no_git_the_environment_says_the_commit(checkout):
    said = made(checkout, SPARKFORGE_COMMIT="4" * 40, GIT_CEILING_DIRECTORIES=str(checkout.parent))
    assert said["provenance"]["commit"] == {"id": "4" * 40, "dirty": None, "from": "environment"}


def test_the_sources_are_those_that_were_opened(checkout):
    found = made(checkout, "sys.path.insert(0, str(Path(__file__).parent)); import helping")["provenance"]["reads"]
    assert set(found) == {"sparkforge/__init__.py", "tools/measure.py", "tools/helping.py"}  # and not what writes it
    assert found["tools/helping.py"] == git(checkout, "hash-object", "tools/helping.py")
    assert "tools/helping.py" not in made(checkout)["provenance"]["reads"]


def test_a_child_tells_what_it_opened(checkout):
    child = "import sys; sys.path[:0] = sys.argv[1:]; import helping; from sparkforge.results import provenance; "
    work = f"import subprocess; subprocess.run([sys.executable, '-c', {child!r} + 'provenance.tell()', "
    work += "str(Path(__file__).parent), sys.argv[2]], check=True)"
    assert "tools/helping.py" in made(checkout, work)["provenance"]["reads"]


def test_files_that_a_compiler_read_are_sources(checkout):
    (checkout / "kernel.cu").write_text("// k\n")
    (checkout / "kernel.h").write_text("// h\n")
    old(checkout)
    depfiles = checkout.parent / "objects"
    depfiles.mkdir()
    rule = f"kernel.o: {checkout}/kernel.cu \\\n  {checkout}/kernel.h /usr/include/stdio.h\n"
    (depfiles / "kernel.d").write_text(rule)
    reads = made(checkout, f"run.compiled(Path({str(depfiles)!r}))")["provenance"]["reads"]
    assert {"kernel.cu", "kernel.h"} <= set(reads)
    assert not [name for name in reads if "stdio" in name]


NINJA = """#!/bin/sh
# As `ninja -C FOLDER -f MANIFEST -t deps` does: it knows what the manifest leads to.
[ "$1 $3 $5 $6" = "-C -f -t deps" ] || exit 1
for file in $(sed 's/^subninja //' "$4"); do echo "x.o: #deps 1, deps mtime 1 (VALID)"; sed 's/^/    /' "$file"; done
"""


@pytest.mark.parametrize("log", ["ops/module", "ops"])  # one module built alone, or several at once
def test_ninja_says_which_files_its_compilers_read(checkout, tmp_path, log):
    (checkout / "kernel.cu").write_text("// k\n")
    old(checkout)
    programs, module = tmp_path / "bin", tmp_path / "ops/module"
    programs.mkdir()
    module.mkdir(parents=True)
    (programs / "ninja").write_text(NINJA)
    (programs / "ninja").chmod(0o755)
    (module / "build.ninja").write_text(f"{checkout}/kernel.cu\n/usr/include/stdio.h\n")
    (tmp_path / log / ".ninja_deps").write_bytes(b"")
    path = f"{programs}:{os.environ['PATH']}"
    reads = made(checkout, f"run.compiled(Path({str(tmp_path / 'ops')!r}))", PATH=path)["provenance"]["reads"]
    assert "kernel.cu" in reads


def test_a_folder_of_sources_without_a_mark_can_be_named(checkout, tmp_path):
    source = tmp_path / "src"
    (source / "csrc").mkdir(parents=True)
    (source / "csrc/k.cu").write_text("k")
    old(source)
    work = (
        f"run.tree(Path({str(source)!r}), 'flashinfer', '{'3' * 40}'); run.read([Path({str(source)!r}) / 'csrc/k.cu'])"
    )
    found = made(checkout, work)["provenance"]
    assert found["trees"] == {"flashinfer": "3" * 40}
    assert found["reads"]["flashinfer:csrc/k.cu"] == provenance.blob(b"k")


def test_files_that_were_opened_in_an_image_have_the_ids_that_the_tree_has(checkout):
    files = {"csrc/k.cu": "5" * 40, "flashinfer/a.py": "6" * 40, "flashinfer/b.py": "7" * 40}
    names = ["flashinfer/data/csrc/k.cu", "flashinfer/a.py", "flashinfer/made_by_a_build.py"]
    found = made(checkout, f"run.of_tree('flashinfer', '{'3' * 40}', {files!r}, {names!r})")["provenance"]
    of_trees = {name: blob for name, blob in found["reads"].items() if ":" in name}
    assert of_trees == {"flashinfer:csrc/k.cu": "5" * 40, "flashinfer:flashinfer/a.py": "6" * 40}
    assert found["trees"] == {"flashinfer": "3" * 40}


def patched(folder: Path, files: dict[str, str], tree: str) -> Path:
    for name, text in {"flashinfer/sparkforge_tree.txt": tree, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    old(folder)
    return folder


def test_files_of_a_patched_tree_have_its_names_wherever_they_lie(checkout, tmp_path):
    source = patched(tmp_path / "src", {"pyproject.toml": "", "csrc/k.cu": "k"}, "1" * 40)
    work = f"run.read([Path({str(source)!r}) / 'csrc/k.cu'])"
    found = made(checkout, work)["provenance"]
    assert found["trees"] == {"flashinfer": "1" * 40}
    assert found["reads"]["flashinfer:csrc/k.cu"] == provenance.blob(b"k")
    files = {"flashinfer/data/csrc/k.cu": "k", "flashinfer/a.py": "a", "torch/b.py": "b"}
    site = patched(tmp_path / "site-packages", files, "1" * 40)
    found = made(checkout, f"run.read(Path({str(site)!r}).rglob('*.*'))")["provenance"]
    of_trees = {name for name in found["reads"] if ":" in name}
    assert of_trees == {
        "flashinfer:csrc/k.cu",
        "flashinfer:flashinfer/a.py",
        "flashinfer:flashinfer/sparkforge_tree.txt",
    }


def test_two_trees_in_one_run_are_wrong(checkout, tmp_path):
    folders = [patched(tmp_path / name, {"flashinfer/a.py": "a"}, name * 40) for name in "12"]
    work = f"run.read([Path({str(folders[0] / 'flashinfer/a.py')!r})]);"
    assert made(checkout, work)["provenance"]["wrong"] == []
    work += f"run.read([Path({str(folders[1] / 'flashinfer/a.py')!r})])"
    assert made(checkout, work)["provenance"]["wrong"] == [f"flashinfer is {'1' * 40} and {'2' * 40}: two were read"]


def test_two_contents_of_one_source_are_wrong(checkout, tmp_path):
    folders = [patched(tmp_path / name, {"flashinfer/a.py": name}, "1" * 40) for name in "ab"]
    work = f"run.read([Path(one) / 'flashinfer/a.py' for one in {[str(one) for one in folders]!r}])"
    assert "flashinfer:flashinfer/a.py is " in made(checkout, work)["provenance"]["wrong"][0]


def test_a_source_that_is_written_during_the_run_is_wrong(checkout):
    work = "sys.path.insert(0, str(Path(__file__).parent)); import time; time.sleep(0.05); import helping\n"
    work += "Path(helping.__file__).write_text('value = 3')"
    assert made(checkout, work)["provenance"]["wrong"] == ["tools/helping.py was written during the run"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda said: said.update(samples=[1.5, 3]),
        lambda said: said.update(more=1),
        lambda said: said["provenance"].update(begun="2020-01-01T00:00:00Z"),
        lambda said: said["provenance"]["reads"].update({"tools/measure.py": "0" * 40}),
        lambda said: said["provenance"]["machine"].update(cpu="another"),
    ],
)
def test_an_edit_changes_the_hash(checkout, edit):
    said = made(checkout)
    assert provenance.digest(said) == said["provenance"]["sha256"]
    edit(said)
    assert provenance.digest(said) != said["provenance"]["sha256"]


def test_another_layout_does_not_change_the_hash(checkout):
    said = made(checkout)
    again = json.loads(json.dumps(dict(reversed(said.items())), indent=7))
    assert provenance.digest(again) == said["provenance"]["sha256"]


@pytest.mark.parametrize(
    "value",
    [{}, [], 3.5, "é", {"a": []}, {"rows": [[1, 2.5, None]] * 40}, {"long": list(range(200))}, ["x" * 300, "y"],
     {"deep": {"k" * 60: {"m" * 60: [{"n": 1}, []]}}}],
)  # fmt: skip
def test_text_is_the_value_in_lines_of_120_columns(value):
    written = provenance.text(value)
    assert json.loads(written) == value
    assert all(len(line) <= 121 for line in written.splitlines() if "xxx" not in line)  # a comma may follow
    if value == {"long": list(range(200))}:
        assert len(written.splitlines()) < 13


@pytest.mark.parametrize(
    ("word", "said"),
    [("/a/b/x.json", "x.json"), ("--json=/a/b/x.json", "--json=x.json"), ("a/b", "a/b"), ("https://x/y", "https://x/y"),
     (f"{ROOT}/tools/x.py", "tools/x.py"), ("3/4", "3/4"), ("'file:///a/b/c/' is ignored", "'' is ignored")],
)  # fmt: skip
def test_no_folder_of_this_machine_is_told(word, said):
    assert provenance.plain(word) == said
