"""The writer that binds results, found from here: sparkforge/results/provenance.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))

from sparkforge.results.provenance import Run, tell

__all__ = ["Run", "tell"]
