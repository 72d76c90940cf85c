"""What this machine is and has; reading it changes nothing."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.platforms import AMD64, ARM64, Platform
from sparkforge.core.proc import run
from sparkforge.core.store import Store
from sparkforge.engine.choose import candidates, proven
from sparkforge.image.bootstrap import emulates

OS_RELEASE = Path("/etc/os-release")
DGX_RELEASE = Path("/etc/dgx-release")
SOCKET = Path("/var/run/docker.sock")
DEBIAN_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LOOKED_FOR = (
    *("git", "g++", "aarch64-linux-gnu-g++", "x86_64-linux-gnu-g++", "mmdebstrap", "arch-test", "gpg", "newuidmap"),
    *("docker", "dockerd", "buildah", "qemu-aarch64-static", "qemu-x86_64-static", "sudo", "apt-get", "iptables"),
)


@dataclass(frozen=True)
class Distribution:
    """A Linux distribution, from its own files.

    Attributes:
        id: debian, ubuntu, ...
        version: VERSION_ID, 12 or 24.04.
        name: for people.
        dgx: version of DGX OS, which is Ubuntu with NVIDIA's packages; "" elsewhere.
    """

    id: str
    version: str
    name: str
    dgx: str = ""

    @property
    def supported(self) -> bool:
        """Whether setup knows its packages."""
        return (self.id, self.version) in {("debian", "12"), ("ubuntu", "24.04")}


@dataclass(frozen=True)
class Host:
    """A machine.

    Attributes:
        distribution: what it runs.
        platform: what it is.
        root: whether this process is root's.
        systemd: whether systemd runs it.
        programs: the programs that are there, of those that we look for.
        files: the files that are there, likewise.
        able: engines that work, in words.
        refused: engines that do not work, each with its reason.
        daemon: whether a Docker daemon answers us.
        candidates: packages that apt could install now.
        emulated: platforms whose programs run here, by emulation or not.
        user: name of who runs this.
        barred: whether a Docker daemon is there whose socket is closed to this process.
        member: whether the user is in the group docker, perhaps since after this login.
    """

    distribution: Distribution
    platform: Platform
    root: bool
    systemd: bool
    programs: frozenset[str]
    files: frozenset[str]
    able: tuple[str, ...]
    refused: tuple[str, ...]
    daemon: bool
    candidates: frozenset[str]
    emulated: frozenset[Platform]
    user: str = ""
    barred: bool = False
    member: bool = False


def distribution(os_release: Path = OS_RELEASE, dgx_release: Path = DGX_RELEASE) -> Distribution:
    """Distribution from its files; DGX OS writes a file of its own beside Ubuntu's."""
    said = read_assignments(os_release)
    dgx = read_assignments(dgx_release)
    version = dgx.get("DGX_OTA_VERSION") or dgx.get("DGX_SWBUILD_VERSION") or ("unknown" if dgx else "")
    name = said.get("PRETTY_NAME", "a Linux without /etc/os-release")
    if dgx:
        name = f"DGX OS {version} ({name})"
    return Distribution(said.get("ID", ""), said.get("VERSION_ID", ""), name, version)


def read_assignments(path: Path) -> dict[str, str]:
    """KEY="value" lines of a file (os-release(5)); empty if there is no such file."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            try:
                words = shlex.split(value)
            except ValueError:
                words = [value]
            found[key] = words[0] if words else ""
    return found


def detect(store: Store, packages: Iterable[str] = ()) -> Host:
    """This machine as it is now.

    Args:
        store: keeps verdicts on engines.
        packages: names to ask apt about.
    """
    able: list[str] = []
    refused: list[str] = []
    for engine in candidates():
        verdict = proven(store, engine)
        (able if verdict.able else refused).append(verdict.reason)
    there = frozenset(name for name in _LOOKED_FOR if shutil.which(name, path=_path()))
    return Host(
        distribution=distribution(),
        platform=Platform.host(),
        root=os.geteuid() == 0,
        systemd=Path("/run/systemd/system").is_dir(),
        programs=there,
        files=frozenset(name for name in (DEBIAN_KEYS,) if Path(name).exists()),
        able=tuple(able),
        refused=tuple(refused),
        daemon=any(engine.answer() for engine in candidates("docker")),
        candidates=installable(packages) if "apt-get" in there else frozenset(),
        emulated=frozenset(one for one in (AMD64, ARM64) if emulates(one)),
        user=(user := pwd.getpwuid(os.geteuid()).pw_name),
        barred=barred(),
        member=any(group.gr_name == "docker" and user in group.gr_mem for group in grp.getgrall()),
    )


def barred() -> bool:
    """Whether a Docker daemon's socket is there and closed to this process."""
    return SOCKET.is_socket() and not os.access(SOCKET, os.W_OK)


def installable(packages: Iterable[str]) -> frozenset[str]:
    """Those of the packages that apt has a candidate for, by the lists that it has now."""
    found = set()
    for package in packages:
        done = run(["apt-cache", "policy", package], check=False)
        lines = [line.split() for line in done.text.splitlines()]
        if any(len(words) > 1 and words[0] == "Candidate:" and words[1] != "(none)" for words in lines):
            found.add(package)
    return frozenset(found)


def _path() -> str:
    """PATH with the folders of the administrator's programs, which a user's own may lack."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
