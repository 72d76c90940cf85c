"""The overlays in a plain virtual environment: `invoke overlay --into VENV`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from sparkforge.core.errors import BadInput, CheckFailed, EnvironmentLacks
from sparkforge.overlay import apply as laying
from sparkforge.overlay.compute import Overlay

T = TypeVar("T")
_CLASSES = {1: CheckFailed, 2: BadInput, 3: EnvironmentLacks}


def site_of(venv: Path) -> Path:
    """Directory in which a virtual environment keeps its packages; a site-packages directory is taken as it is.

    Raises:
        BadInput: there is none, or more than one.
    """
    if venv.name in {"site-packages", "dist-packages"} and venv.is_dir():
        return venv.absolute()
    sites = sorted(venv.absolute().glob("lib/python3.*/site-packages"))
    if not (venv / "pyvenv.cfg").is_file() or len(sites) != 1:
        why = f"{venv} holds {'no pyvenv.cfg' if not (venv / 'pyvenv.cfg').is_file() else f'{len(sites)} of them'}"
        raise BadInput(f"{venv} is no virtual environment", why=why, do="uv venv VENV  and install the pinned wheels")
    return sites[0]


def lay(venv: Path, overlays: Sequence[Overlay]) -> list[str]:
    """Lay overlays over what a virtual environment holds; all are checked before the first is laid.

    Returns:
        A line for each that says what was done.

    Raises:
        CheckFailed: a file is not the pin's, or was edited since; nothing was changed.
        BadInput: `venv` is no virtual environment.
    """
    site = site_of(venv)
    for overlay in overlays:
        _said(partial(laying.check, site, overlay.path))
    return [_said(partial(laying.apply, site, overlay.path)) for overlay in overlays]


def take_off(venv: Path) -> list[str]:
    """Give a virtual environment the files that its wheels installed; a line for each package.

    Raises:
        CheckFailed: a file was edited since the overlay was laid.
    """
    site = site_of(venv)
    return _said(partial(laying.revert, site))


def _said(work: Callable[[], T]) -> T:
    """The work's value; its refusal, which knows nothing of our classes, becomes one of them."""
    try:
        return work()
    except laying.Refused as refused:
        raise _CLASSES[refused.status](refused.what, why=refused.why, do=refused.do) from refused
    except OSError as failed:
        raise EnvironmentLacks("the overlay could not be written", why=str(failed)) from failed
