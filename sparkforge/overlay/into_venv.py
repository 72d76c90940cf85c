"""Overlays in a plain virtual environment: `invoke overlay --into VENV`."""

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
    """Folder of a virtual environment's packages; a site-packages folder may be given instead.

    Raises:
        BadInput: there is none, or more than one.
    """
    if venv.name in {"site-packages", "dist-packages"} and venv.is_dir():
        return venv.absolute()
    sites = sorted(venv.absolute().glob("lib/python3.*/site-packages"))
    if not (venv / "pyvenv.cfg").is_file() or len(sites) != 1:
        why = f"{len(sites)} site-packages folders" if (venv / "pyvenv.cfg").is_file() else "it has no pyvenv.cfg"
        raise BadInput(
            f"{venv} is not a virtual environment", why=why, do="uv venv VENV, then install the pinned wheels"
        )
    return sites[0]


def lay(venv: Path, overlays: Sequence[Overlay]) -> list[str]:
    """Lay overlays over the packages of a virtual environment; all are checked before the first is laid.

    Returns:
        What was done, a line for each.

    Raises:
        CheckFailed: a file is not the pin's, or was edited since; nothing was changed.
        BadInput: `venv` is not a virtual environment.
    """
    site = site_of(venv)
    for overlay in overlays:
        _said(partial(laying.check, site, overlay.path))
    return [_said(partial(laying.apply, site, overlay.path)) for overlay in overlays]


def take_off(venv: Path) -> list[str]:
    """Give a virtual environment back the files of its wheels; a line for each package.

    Raises:
        CheckFailed: a file was edited since the overlay was laid.
    """
    site = site_of(venv)
    return _said(partial(laying.revert, site))


def _said(work: Callable[[], T]) -> T:
    """The result of `work`; its refusal becomes one of our errors, which `apply` cannot import."""
    try:
        return work()
    except laying.Refused as refused:
        raise _CLASSES[refused.status](refused.what, why=refused.why, do=refused.do) from refused
    except OSError as failed:
        raise EnvironmentLacks("the overlay could not be written", why=str(failed)) from failed
