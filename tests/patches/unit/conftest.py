"""The fixture of these tests; what it is made of stands in `patch_forge`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode puts no test folder on the path

from patch_demo import make_upstream
from patch_forge import Forge, make_forge


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return make_forge(tmp_path)


@pytest.fixture
def upstream(local_index, store, tmp_path):
    return make_upstream(local_index, store, tmp_path)
