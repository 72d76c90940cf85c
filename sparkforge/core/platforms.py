"""A container platform, spelled for every tool."""

from __future__ import annotations

import platform as host
from dataclasses import dataclass
from typing import Literal

from sparkforge.core.errors import BadInput, EnvironmentLacks

OciPlatform = Literal["linux/amd64", "linux/arm64"]


@dataclass(frozen=True)
class Platform:
    """One of the two platforms that images are built for.

    Attributes:
        debian: amd64 or arm64, also the OCI word.
        machine: x86_64 or aarch64, as `uname -m` and wheel tags say it.
        elf_machine: `e_machine` of its ELF files.
    """

    debian: str
    machine: str
    elf_machine: int

    @property
    def oci(self) -> OciPlatform:
        """For engines: linux/arm64."""
        return "linux/amd64" if self.debian == "amd64" else "linux/arm64"

    @property
    def triple(self) -> str:
        """Prefix of its GNU compilers."""
        return f"{self.machine}-linux-gnu"

    def uv(self, glibc: str) -> str:
        """For uv's --python-platform; glibc is "2_36" for Debian 12, "2_39" for Ubuntu 24.04."""
        return f"{self.machine}-manylinux_{glibc}"

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Platform from linux/arm64, arm64 or aarch64.

        Raises:
            BadInput: images are not built for it.
        """
        word = text.removeprefix("linux/")
        for known in (AMD64, ARM64):
            if word in (known.debian, known.machine):
                return known
        raise BadInput(f"images are not built for platform {text!r}", do="--platform linux/arm64 or linux/amd64")

    @classmethod
    def host(cls) -> Platform:
        """The platform of this machine.

        Raises:
            EnvironmentLacks: images are not built for it.
        """
        try:
            return cls.parse(host.machine())
        except BadInput as other:
            raise EnvironmentLacks(f"this machine is {host.machine()}", why=other.what) from other


AMD64 = Platform("amd64", "x86_64", 62)
ARM64 = Platform("arm64", "aarch64", 183)
