"""Whether this machine has a GPU to give to a container."""

from __future__ import annotations

from pathlib import Path

from sparkforge.core.errors import EnvironmentLacks

DEV = Path("/dev")
DRIVER = Path("/proc/driver/nvidia")


def demand(what: str) -> None:
    """Raise unless this machine has an NVIDIA GPU with its driver.

    Args:
        what: needs it, for the message.

    Raises:
        EnvironmentLacks: there is none.
    """
    if not any(DEV.glob("nvidia[0-9]*")) and not any(DRIVER.glob("gpus/*")):
        raise EnvironmentLacks(
            f"{what} needs an NVIDIA GPU, and this machine has none",
            why=f"neither {DEV}/nvidia0 nor {DRIVER}/gpus is there",
            do="to see a server without one: invoke build --target cpu, then invoke serve --profile tiny",
        )
