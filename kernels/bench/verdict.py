"""What is wrong with the samples of check_gpu.py's result; read where there is no GPU, so standard library only."""

from __future__ import annotations

from typing import Any

COUNTS = ("calls", "outputs", "bitwise", "worst")


def failures(result: dict[str, Any]) -> list[str]:
    """Sentences, none where all is right."""
    checks = result["checks"]
    found = list(result["wrong"])
    found += [f"{name}: {said}" for name, said in checks.items() if name not in COUNTS and said != "right"]
    if not checks["worst"] <= 1:
        found.append(f"worst error is {checks['worst']} of its bound")
    found += [f"nothing was compared: {name}" for name in ("outputs", "bitwise") if not checks[name]]
    return found
