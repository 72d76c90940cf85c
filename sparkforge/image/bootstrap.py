"""The bootstrap base: a Debian root made by mmdebstrap on the building machine, with no account and no registry.

Mirrors, their keys and a proxy are this machine's own, as apt is configured here; on a machine that has no
Debian of this release configured (Ubuntu, DGX OS), mmdebstrap's own knowledge of Debian serves. The image
keeps none of them. With equal package versions the result is
equal byte for byte (SOURCE_DATE_EPOCH); which versions those are is the mirror's state, so they are listed.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.paths import IMAGES
from sparkforge.core.platforms import Platform
from sparkforge.core.proc import run

SUITE = "bookworm"
EPOCH = "1735689600"  # 2025-01-01: times of files are cut off there, so that they do not differ between builds
_FIELDS = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)|$(LABEL)"
# Not needed to run or to compile: manuals, translations, the dump tool of link-time optimization, static Pythons.
_LEFT_OUT = (
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/doc/*",
    "/usr/share/locale/*",
    "/usr/bin/*-lto-dump-*",
    "/usr/lib/python3*/config-*/libpython*.a",
)
_KEPT = ("/usr/share/doc/*/copyright",)
# Run by mmdebstrap in the shell with the root in $1, after the last package.
_LAST = (
    (
        'rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* "$1"/etc/apt/apt.conf.d/99mmdebstrap'
        ' "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap "$1"/etc/resolv.conf "$1"/etc/hostname'
        ' "$1"/var/log/*.log "$1"/var/log/apt "$1"/var/cache/ldconfig/aux-cache'
    ),
    'echo "vllm:x:2000:0::/home/vllm:/usr/sbin/nologin" >> "$1"/etc/passwd',
)


def make(root: Path, listing: Path, platform: Platform) -> None:
    """Write the root file system of the bootstrap base.

    Args:
        root: tar file to write.
        listing: file to write, `package=version` lines.
        platform: of its programs; another than this machine's needs user emulation.

    Raises:
        EnvironmentLacks: mmdebstrap or emulation is missing, or the mirror did not answer.
    """
    check_emulation(platform)
    words = [*_private(), "mmdebstrap", "--variant=minbase", f"--architectures={platform.debian}", "--format=tar"]
    words += [f"--include={','.join(packages())}"]
    words += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    words += [f"--dpkgopt=path-include={pattern}" for pattern in _KEPT]
    words += [f"--aptopt={option}" for option in proxies()]
    shown = "dpkg-query --admindir=\"$1\"/var/lib/dpkg -W -f '${Package}=${Version}\\n'"
    # Hooks run as another user where mmdebstrap works in a user namespace; `download` writes as ours.
    listed = (
        f'{shown} > "$1"/tmp/listing',
        f"download /tmp/listing {shlex.quote(str(listing))}",
        'rm "$1"/tmp/listing',
    )
    words += [f"--customize-hook={line}" for line in (*listed, *_LAST)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH, "LC_ALL": "C.UTF-8"}
    if os.geteuid() == 0:
        # What a killed run leaves then lies in the unfinished result, which is swept. Others work by user namespaces,
        # whose users cannot enter a home; apt's own unprivileged user could not either.
        environment["TMPDIR"] = str(root.parent)
        words.append('--aptopt=APT::Sandbox::User "root"')
    words += [SUITE, str(root), *mirrors()]
    run(words, env=environment, error=EnvironmentLacks, do="apt-get update shows whether the mirror answers")


def packages() -> list[str]:
    """The Debian packages of every base, sorted, from `images/base/packages.txt`; a `#` begins a comment."""
    lines = (line.partition("#")[0].strip() for line in (IMAGES / "base" / "packages.txt").read_text().splitlines())
    return sorted(line for line in lines if line)


def _private() -> list[str]:
    """Words before mmdebstrap that hide its mounts from other programs, where that is allowed.

    As root it mounts /proc and others inside of the root that it makes, and takes them away at its end; a killed
    one does not. In a namespace of its own they go with it.
    """
    words = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0 or shutil.which("unshare") is None or run([*words, "true"], check=False).code:
        return []
    return words


def mirrors() -> list[str]:
    """Lines of this machine's apt sources for the suite and its updates; none where it is configured for another."""
    if shutil.which("apt-get") is None:
        return []
    done = run(["apt-get", "indextargets", "--format", _FIELDS, "Created-By: Packages"], check=False)
    lines: list[str] = []
    for line in done.text.splitlines():
        uri, release, component, key, label = line.split("|")
        if not label.startswith("Debian") or release.partition("-")[0] != SUITE:
            continue
        option = f"[signed-by={key}] " if key.startswith("/") else ""
        lines.append(f"deb {option}{uri} {release} {component}")
    # Updates without the release itself are not a system.
    return sorted(set(lines)) if any(f" {SUITE} " in line for line in lines) else []


def proxies() -> list[str]:
    """Options of this machine's apt that say how to reach a mirror; they do not stay in the image."""
    if shutil.which("apt-config") is None:
        return []
    done = run(["apt-config", "dump", "Acquire"], check=False)
    wanted = ("Acquire::http::Proxy ", "Acquire::https::Proxy ", "Acquire::https::CaInfo ")
    return [line.rstrip(";") for line in done.text.splitlines() if line.startswith(wanted) and '""' not in line]


def check_emulation(platform: Platform) -> None:
    """See that this machine runs programs of a platform.

    Raises:
        EnvironmentLacks: it does not.
    """
    if platform == Platform.host():
        return
    if not emulates(platform):
        raise EnvironmentLacks(
            f"this machine runs no {platform.oci} programs",
            why=f"a base for {platform.oci} runs its packages' own install scripts; everything else is cross-built",
            do=f"invoke setup --platform {platform.oci}",
        )


def emulates(platform: Platform) -> bool:
    """Whether the kernel hands that platform's programs to an emulator, from inside of a container too."""
    entry = Path(f"/proc/sys/fs/binfmt_misc/qemu-{platform.machine}")
    try:
        said = entry.read_text()
    except OSError:
        return False
    flags = next((line for line in said.splitlines() if line.startswith("flags:")), "")
    return said.startswith("enabled") and "F" in flags
