"""Tables fit, pipes stay plain, and nothing is drawn or imported that nobody sees."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkforge.core import console
from sparkforge.core.paths import ROOT

DRAW = """
from sparkforge.core import console
print(console.table(("check", "verdict"), [("loads", "passed"), ("answers", "failed")]))
console.step("cached", "wheels")
console.warn("low disk")
"""


def on_a_terminal(code, **env):
    """What a program writes to a terminal of 60 columns."""
    main, side = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    variables = {**plain, "TERM": "xterm-256color", "COLUMNS": "60", "PYTHONPATH": str(ROOT), **env}
    child = subprocess.Popen([sys.executable, "-c", code], env=variables, stdin=side, stdout=side, stderr=side)
    os.close(side)
    said = b""
    try:
        while part := os.read(main, 4096):
            said += part
    except OSError:  # how Linux says that the other end is closed
        pass
    finally:
        os.close(main)
    assert child.wait() == 0, said
    return said.decode()


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.integers(1, 9).flatmap(
        lambda columns: st.lists(
            st.lists(st.text(st.sampled_from("aW_/. []\n"), max_size=300), min_size=columns, max_size=columns),
            min_size=1,
            max_size=4,
        )
    )
)
def test_any_table_fits_100_columns(rows):
    lines = console.table([f"column {n}" for n in range(len(rows[0]))], rows).splitlines()
    assert max(map(len, lines)) <= 100


def test_cells_wrap_and_lose_nothing():
    drawn = console.table(("id", "what"), [("V-01", "word " * 40), ("V-02", "x" * 250)])
    assert drawn.count("word") == 40
    assert drawn.count("x") == 250
    assert drawn.splitlines()[0].split() == ["id", "what"]


def test_brackets_are_text():
    assert "Backport [0.7.2] [red]" in console.table(("status",), [("Backport [0.7.2] [red]",)])


def test_a_table_without_headings_has_no_empty_line():
    assert console.table(("", ""), [("id", "V-01")]) == "id  V-01"


def test_a_pipe_gets_no_colours(capsys):
    print(console.table(("check", "verdict"), [("loads", "failed")]))
    console.step("cached", "wheels")
    said = capsys.readouterr()
    assert "\033" not in said.out + said.err
    assert said.err == "[cached] wheels\n"


def test_a_terminal_gets_colours():
    said = on_a_terminal(DRAW)
    assert "\033[32mpassed" in said
    assert "\033[31mfailed" in said
    assert "\033[32mcached" in said
    assert "\033[33mwarning" in said


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_turned_off(env):
    said = on_a_terminal(DRAW, **env)
    assert "passed" in said
    assert "\033" not in said


def test_a_narrow_terminal_gets_a_narrow_table():
    said = on_a_terminal("from sparkforge.core import console; print(console.table(('a', 'b'), [('x', 'w ' * 90)]))")
    assert max(len(re.sub(r"\033\[[0-9;]*m", "", line)) for line in said.splitlines()) <= 60


def test_a_download_in_a_log_is_a_line_now_and_then(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with console.Meter("wheels", 4_000_000, _begun=0.0, _shown=0.0) as meter:
        for now[0] in (1.0, 11.0, 12.0, 20.0):
            meter.add(1_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "  wheels: 2.0 MB of 4.0 MB, 181.8 kB/s",
        "  wheels: 4.0 MB in 20.0 s",
    ]


def test_a_download_on_a_terminal_is_a_bar():
    code = """
from sparkforge.core import console
with console.Meter("wheels", 2_000_000) as meter:
    meter.add(1_000_000)
    meter._bar.refresh()
"""
    said = on_a_terminal(code, COLUMNS="100")
    assert "1.0/2.0 MB" in said
    assert "wheels: 1.0 MB in" in said


def test_quiet_keeps_warnings(capsys):
    console.quiet()
    try:
        console.say("hidden")
        console.step("plan", "hidden")
        console.warn("shown")
    finally:
        console.quiet(on=False)
    assert capsys.readouterr().err == "warning: shown\n"


def test_listing_the_tasks_imports_no_heavy_library():
    code = "import sys, tasks; print(sorted({'rich', 'git', 'docker', 'requests'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
