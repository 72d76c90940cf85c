"""Tasks that make images and run them."""

from __future__ import annotations
