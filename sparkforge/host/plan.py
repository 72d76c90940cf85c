"""What setup would do on a machine, and why. A plan is only a value: nothing is changed here."""

from __future__ import annotations

from dataclasses import dataclass

from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.platforms import AMD64, Platform
from sparkforge.host.detect import DEBIAN_KEYS, Host

Command = tuple[str, ...]

_BINFMT = "/proc/sys/fs/binfmt_misc"
# In braces, because `a || b &` would put both in the background, and the shell with them.
_DOCKERD = "{ setsid dockerd >/var/log/sparkforge-dockerd.log 2>&1 </dev/null & }"


@dataclass(frozen=True)
class Action:
    """One thing to do.

    Attributes:
        title: what it does.
        why: what is missing.
        commands: what is run, in order; each as words.
        packages: packages that it installs; empty for other actions.
        waits: whether a Docker daemon must answer afterwards.
        enters: whether we go on as a member of the group docker afterwards.
    """

    title: str
    why: str
    commands: tuple[Command, ...]
    packages: tuple[str, ...] = ()
    waits: bool = False
    enters: bool = False


def wanted(host: Host, platform: Platform) -> dict[str, str]:
    """Packages that are missing for building images for a platform, each with the reason."""
    programs = _programs(host, platform)
    lacks = {package: why for package, (program, why) in programs.items() if program not in host.programs}
    if host.distribution.id != "debian" and DEBIAN_KEYS not in host.files:
        lacks["debian-archive-keyring"] = "signs the packages of the bootstrap base"
    if host.able:
        return lacks
    if "dockerd" not in host.programs:
        lacks |= _docker(host)
    elif host.daemon and "buildah" not in host.programs:
        # A Docker that answers and cannot build is not ours to repair. Buildah needs no daemon.
        lacks["buildah"] = "builds where Docker cannot: " + "; ".join(host.refused)
    return lacks


def _programs(host: Host, platform: Platform) -> dict[str, tuple[str, str]]:
    """For each package: the program that shows that it is installed, and why it is needed."""
    found = {
        "git": ("git", "patch series are applied by git"),
        "g++": ("g++", "host compiler of nvcc"),
        "mmdebstrap": ("mmdebstrap", "makes the bootstrap base"),
    }
    if not host.root:
        found["uidmap"] = ("newuidmap", "lets mmdebstrap and buildah work without root")
    if host.platform == AMD64:  # images are for arm64: this machine compiles their kernels
        found["g++-aarch64-linux-gnu"] = ("aarch64-linux-gnu-g++", "host compiler for kernels for linux/arm64")
    if host.distribution.id != "debian":
        found["gpg"] = ("gpg", "tells mmdebstrap which key signs the bootstrap base")
    if platform != host.platform:
        found["arch-test"] = ("arch-test", f"mmdebstrap asks it whether {platform.oci} programs run here")
        program = f"qemu-{platform.machine}-static"
        found["qemu-user-static"] = (program, f"runs the install scripts of a {platform.oci} base")
    return found


def _docker(host: Host) -> dict[str, str]:
    why = "no container engine: " + ("; ".join(host.refused) or "none is installed")
    # From Docker 23 on the client builds through a plugin, a package of its own on Ubuntu.
    more = {"docker-buildx": "the build plugin of this Docker"} if host.distribution.id == "ubuntu" else {}
    return {"docker.io": why, **more}


def plan(host: Host, platform: Platform, *, fallback: bool = False) -> list[Action]:
    """What to do before images for a platform can be built; empty if nothing is missing.

    Args:
        host: the machine as it is.
        platform: of the images.
        fallback: Docker was tried and does not work: use buildah.

    Raises:
        EnvironmentLacks: an unknown distribution; names what to install by hand.
    """
    lacks = wanted(host, platform)
    if fallback and not host.able:
        for name in ("docker.io", "docker-buildx"):
            lacks.pop(name, None)
        if "buildah" not in host.programs:
            lacks["buildah"] = "builds without a daemon; Docker does not: " + "; ".join(host.refused)
    actions: list[Action] = []
    if lacks:
        if not host.distribution.supported:
            raise EnvironmentLacks(
                f"setup does not know the packages of {host.distribution.name}",
                why="missing: " + "; ".join(f"{name} ({why})" for name, why in lacks.items()),
                do="install these by hand, then run it again: Debian 12, Ubuntu 24.04 and DGX OS are known",
            )
        actions += _install(host, lacks)
    # A stopped Docker is started even if buildah works: Docker is the first choice.
    wants_docker = "docker.io" in lacks or ("dockerd" in host.programs and (host.root or not host.able))
    if host.barred and not host.able:
        actions.append(let_in(host))
    elif wants_docker and not fallback and not host.daemon:
        actions.append(_start(host))
    if platform != host.platform and platform not in host.emulated:
        actions.append(_emulate(platform))
    return actions


def _install(host: Host, lacks: dict[str, str]) -> list[Action]:
    names = tuple(sorted(lacks))
    commands: list[Command] = []
    unknown = [name for name in names if name not in host.candidates]
    if unknown:
        commands.append(("apt-get", "update"))
    commands.append(("apt-get", "install", "--yes", "--no-install-recommends", *names))
    why = "; ".join(f"{name}: {lacks[name]}" for name in names)
    return [Action(f"install {' '.join(names)}", why, tuple(commands), packages=names)]


def _start(host: Host) -> Action:
    why = "no Docker daemon answers"
    if host.systemd:
        return Action("start the Docker daemon", why, (("systemctl", "enable", "--now", "docker"),), waits=True)
    # Without systemd nothing starts a service for good; its init script may fail where limits cannot be raised.
    # A daemon that was killed leaves files with its process id, and a new one takes any process of that id for it.
    pids = "/var/run/docker.pid /var/run/docker/containerd/containerd.pid"
    start = f"pgrep -x dockerd >/dev/null || rm -f {pids}; service docker start || {_DOCKERD}"
    return Action(
        "start the Docker daemon for now: there is no systemd to start it again after a reboot",
        why,
        (("sh", "-c", start),),
        waits=True,
    )


def let_in(host: Host) -> Action:
    """Open Docker's socket to the user, by its group."""
    add = () if host.member else (("usermod", "--append", "--groups", "docker", host.user),)
    return Action(f"let {host.user} use Docker", "its socket is open to root and the group docker", add, enters=True)


def _emulate(platform: Platform) -> Action:
    mount = f"test -e {_BINFMT}/register || mount -t binfmt_misc none {_BINFMT}"
    name = f"qemu-{platform.machine}"
    register = f"/usr/lib/systemd/systemd-binfmt {name}.conf || update-binfmts --enable {name}"
    return Action(
        f"let the kernel run {platform.oci} programs through qemu",
        f"a base for {platform.oci} runs its packages' install scripts",
        (("sh", "-c", mount), ("sh", "-c", register)),
    )
