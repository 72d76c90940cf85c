"""Every test file of the tree is run by something: `invoke test`, a patch's `Test:` trailer, or a step of CI."""

from __future__ import annotations

import re
import subprocess
import sys

from sparkforge.core.paths import ROOT


def unrun(root) -> set[str]:
    """Test files of a checkout that nothing runs."""
    every = lines(["git", "ls-files", "--cached", "--others", "--exclude-standard", "test_*.py", "**/test_*.py"], root)
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    collected = {line.partition("::")[0] for line in lines(collect, root) if "::" in line}
    patches = "\n".join(path.read_text(errors="replace") for path in root.glob("patches/*/*/*.patch"))
    trailers = set(re.findall(r"^Test: (\S+)$", patches, re.MULTILINE))
    steps = (root / ".ci" / "run").read_text()
    return {path for path in every if (root / path).is_file()} - collected - trailers - set(re.findall(r"\S+", steps))


def lines(words, root):
    return subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()


def test_every_test_file_is_run_by_something():
    assert unrun(ROOT) == set()


def test_a_file_that_pytest_passes_over_is_named(tmp_path):
    """pytest leaves out folders named `build` unless it is told otherwise; so 33 tests of ours never ran."""
    files = {
        "pyproject.toml": '[tool.pytest.ini_options]\ntestpaths = ["tests"]\naddopts = "--import-mode=importlib"\n',
        "tests/test_one.py": "def test_it(): pass\n",
        "tests/build/test_two.py": "def test_it(): pass\n",
        "tools/test_three.py": "def test_it(): pass\n",
        "tools/test_four.py": "def test_it(): pass\n",
        "patches/demo/1.0/0001-it.patch": "Test: tools/test_three.py\n",
        ".ci/run": "step pytest tools/test_four.py -q\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    assert unrun(tmp_path) == {"tests/build/test_two.py"}
