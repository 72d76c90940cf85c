from __future__ import annotations

import pytest

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.overlay import into_venv as environments

OTHER = {"other/__init__.py": b"X = 1\n"}


def test_an_overlay_goes_on_and_comes_off(demo):
    venv = demo.venv("venv")
    made = demo.overlay({"demo/a.py": b"VALUE = 'new'\n"})
    (line,) = environments.lay(venv, [made])
    assert "1 replaced" in line
    assert demo.python(venv, "import demo.a; print(demo.a.VALUE)") == "new"
    assert environments.take_off(venv) == ["demo: as its wheel installed it"]
    assert demo.python(venv, "import demo.a; print(demo.a.VALUE)") == "pin"


def test_nothing_is_laid_when_the_second_does_not_fit(demo):
    venv = demo.venv("venv")
    fits, fits_not = demo.overlay({"demo/a.py": b"A = 1\n"}), demo.overlay({"demo/sub/b.py": b"B = 1\n"})
    (demo.site(venv) / "demo/sub/b.py").unlink()
    with pytest.raises(CheckFailed, match="not what the overlay was made for"):
        environments.lay(venv, [fits, fits_not])
    assert demo.python(venv, "import demo.a; print(demo.a.VALUE)") == "pin"


def test_what_is_no_environment_is_named(demo, tmp_path):
    with pytest.raises(BadInput, match="not a virtual environment"):
        environments.lay(tmp_path, [])


def test_a_site_packages_directory_is_taken_as_it_is(demo):
    venv = demo.venv("venv")
    assert environments.site_of(demo.site(venv)) == environments.site_of(venv)
