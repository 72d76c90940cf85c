"""Groups of CI: a run that passed stands until something that the group reads changes, and no skip goes unseen."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from itertools import chain, combinations

import pytest
from _pytest.mark.expression import Expression

from sparkforge.cli.project import GROUPS
from sparkforge.core.paths import ROOT

_spec = importlib.util.spec_from_file_location("ci_group", ROOT / ".ci" / "group.py")
group = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(group)

GROUPS_YAML = """
groups:
  slow: {reads: [[code, data], "!code/not_read.txt"]}
skips:
  - {reason: "of Docker alone|no .* here", why: a test}
"""


@pytest.fixture
def checkout(tmp_path):
    files = {
        ".ci/groups.yaml": GROUPS_YAML,
        ".gitignore": "build/",
        "code/a.txt": "a",
        "code/not_read.txt": "b",
        "data/c.txt": "c",
        "other.txt": "d",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


def says(status=0, *lines):
    return [sys.executable, "-c", f"import sys; print({chr(10).join(lines)!r}); sys.exit({status})"]


@pytest.fixture
def run(checkout, capfd):
    """Runs the group; its status, and whether an earlier run was taken."""

    def run_(name="slow", status=0, *lines, full=False):
        code = group.take(checkout, name, says(status, *lines), full=full)
        return code, "taken from the run of" in capfd.readouterr().out

    return run_


def test_a_run_that_passed_stands_until_something_that_it_reads_changes(checkout, run):
    taken = []
    for act in (
        lambda: None,
        lambda: None,
        lambda: (checkout / "other.txt").write_text("new"),
        lambda: (checkout / "code/not_read.txt").write_text("new"),
        lambda: (checkout / "data/c.txt").write_text("new"),
        lambda: (checkout / "code/new.txt").write_text("not tracked yet"),
        lambda: (checkout / "data/c.txt").unlink() or (checkout / "data/other.txt").write_text("new"),
    ):
        act()
        taken.append(run())
    assert taken == [(0, False), (0, True), (0, True), (0, True), (0, False), (0, False), (0, False)]


def test_full_runs_it_again_and_another_command_is_another_run(run):
    assert [run(), run(full=True), run("slow", 0, "other words"), run()] == [(0, False)] * 4


def test_a_run_that_failed_stands_for_nothing_and_takes_the_earlier_one_away(run):
    assert run("slow", 3) == (3, False)
    assert run("slow", 3) == (3, False)
    assert run() == (0, False)
    assert run("slow", 3, full=True) == (3, False)
    assert run() == (0, False)


def test_a_record_that_was_edited_stands_for_nothing(checkout, run):
    run()
    path = checkout / group.RECORDS
    path.write_text(path.read_text().replace('"seconds": ', '"seconds": 1'))
    assert run() == (0, False)
    assert run() == (0, True)


def test_a_group_that_is_not_listed_always_runs(checkout, run):
    assert [run("fast"), run("fast")] == [(0, False)] * 2
    assert not (checkout / group.RECORDS).exists()


def test_a_path_that_names_nothing_is_refused(checkout, run):
    (checkout / "data/c.txt").unlink()
    with pytest.raises(SystemExit, match="data names no file"):
        run()


SKIP = "SKIPPED [2] tests/a.py:7: of Docker alone"
PROOF = "warning: F-01: skipped test_a (setup): skipped: no g++ here"


@pytest.mark.parametrize(
    ("lines", "status"),
    [((), 0), ((SKIP,), 0), ((SKIP, PROOF), 0), (("SKIPPED [1] tests/a.py:7: of Docker alone, and more",), 1)],
)
def test_a_skip_for_a_reason_that_is_not_listed_fails(checkout, run, capfd, lines, status):
    run("fast", 0, *lines)
    assert group.skipped(checkout) == status
    said = capfd.readouterr().out
    assert ("NO" in said) == bool(status)
    assert ("of Docker alone" in said) == bool(lines)


def test_the_skips_of_a_run_that_was_taken_count_as_well(checkout, run, capfd):
    run("slow", 0, "SKIPPED [1] tests/a.py:7: odd")
    (checkout / group.DONE / "slow.json").unlink()
    assert run("slow", 0, "SKIPPED [1] tests/a.py:7: odd") == (0, True)
    assert group.skipped(checkout) == 1
    assert "taken from the run of" in capfd.readouterr().out


def test_what_a_group_reads_is_there_and_what_is_committed_is_what_a_run_wrote():
    said = group.listed(ROOT)
    for name, one in said["groups"].items():
        assert group.reads(ROOT, one["reads"]), name
    if (ROOT / group.RECORDS).is_file():
        kept = json.loads((ROOT / group.RECORDS).read_bytes())
        assert group.known(ROOT) == kept["groups"]
        assert set(kept["groups"]) <= set(said["groups"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compile", "engine", "serves"])
def test_a_group_reads_its_own_tests(name):
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", GROUPS[name]]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {line.partition("::")[0] for line in said.splitlines() if "::" in line}
    assert files
    assert files <= set(group.reads(ROOT, group.listed(ROOT)["groups"][name]["reads"]))


def test_every_test_is_in_one_group():
    marks = ("online", "engine", "nvcc", "gpu", "serves", "slow")
    compiled = [Expression.compile(words) for words in GROUPS.values()]
    for some in chain.from_iterable(combinations(marks, count) for count in range(len(marks) + 1)):
        assert sum(one.evaluate(lambda name, of=some, **_: name in of) for one in compiled) == 1, some
