"""Pins, patch series and kernels in; a serving image for NVIDIA SM12x out."""

from __future__ import annotations

__version__ = "0.1.0"
