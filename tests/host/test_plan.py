"""Setup's plans for machines given as values, and distributions read from files as those ship them."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.platforms import AMD64, ARM64
from sparkforge.host.detect import DEBIAN_KEYS, Distribution, Host, distribution
from sparkforge.host.plan import plan

FILES = Path(__file__).parent / "files"
DEBIAN = Distribution("debian", "12", "Debian GNU/Linux 12 (bookworm)")
UBUNTU = Distribution("ubuntu", "24.04", "Ubuntu 24.04.3 LTS")
ALL = frozenset({"git", "g++", "aarch64-linux-gnu-g++", "mmdebstrap", "gpg", "sudo", "apt-get", "newuidmap"})
BARE = Host(
    distribution=DEBIAN,
    platform=AMD64,
    root=True,
    systemd=False,
    programs=frozenset({"apt-get"}),
    files=frozenset(),
    able=(),
    refused=(),
    daemon=False,
    candidates=frozenset(),
    emulated=frozenset({AMD64}),
)


@pytest.mark.parametrize(
    ("os_release", "dgx_release", "expected"),
    [
        ("debian-12", "none", ("debian", "12", "", True)),
        ("ubuntu-24.04", "none", ("ubuntu", "24.04", "", True)),
        ("ubuntu-24.04", "dgx-release", ("ubuntu", "24.04", "7.2.3", True)),
        ("fedora-42", "none", ("fedora", "42", "", False)),
        ("none", "none", ("", "", "", False)),
    ],
)
def test_a_distribution_is_read_from_its_files(os_release, dgx_release, expected):
    found = distribution(FILES / os_release, FILES / dgx_release)
    assert (found.id, found.version, found.dgx, found.supported) == expected


def packages(actions):
    return {name for action in actions for name in action.packages}


def test_a_bare_debian_gets_everything_and_a_daemon_started_without_systemd():
    actions = plan(BARE, AMD64)
    assert packages(actions) == {"git", "g++", "g++-aarch64-linux-gnu", "mmdebstrap", "docker.io"}
    assert actions[0].commands[0] == ("apt-get", "update")
    assert actions[-1].waits
    assert "dockerd" in actions[-1].commands[0][-1]
    assert "no systemd" in actions[-1].title
    assert all(action.why for action in actions)


def test_package_lists_that_know_the_packages_are_not_fetched_again():
    known = frozenset({"git", "g++", "g++-aarch64-linux-gnu", "mmdebstrap", "docker.io"})
    commands = plan(replace(BARE, candidates=known), AMD64)[0].commands
    assert [command[1] for command in commands] == ["install"]


def test_ubuntu_packages_the_build_plugin_and_debians_keys_by_themselves():
    spark = replace(BARE, distribution=UBUNTU, platform=ARM64, systemd=True, emulated=frozenset({ARM64}))
    actions = plan(spark, ARM64)
    wanted = {"git", "g++", "mmdebstrap", "docker.io", "docker-buildx", "debian-archive-keyring", "gpg"}
    assert packages(actions) == wanted
    assert actions[-1].commands == (("systemctl", "enable", "--now", "docker"),)


def test_a_ready_machine_is_left_alone():
    ready = replace(BARE, programs=ALL, able=("Docker 28 through /usr/bin/docker",), daemon=True)
    assert plan(ready, AMD64) == []
    assert plan(replace(ready, distribution=UBUNTU, files=frozenset({DEBIAN_KEYS})), AMD64) == []
    assert plan(replace(ready, programs=ALL - {"mmdebstrap"}), AMD64) != []


def test_a_docker_that_answers_and_cannot_build_is_answered_with_buildah():
    broken = replace(BARE, programs=ALL | {"dockerd"}, daemon=True, refused=("docker: no RUN --mount",))
    assert packages(plan(broken, AMD64)) == {"buildah"}
    assert "no RUN --mount" in plan(broken, AMD64)[0].why


def test_a_docker_that_does_not_start_is_answered_with_buildah():
    dead = replace(BARE, programs=ALL | {"dockerd"}, refused=("docker: no daemon",))
    assert [action.waits for action in plan(dead, AMD64)] == [True]
    assert packages(plan(dead, AMD64, fallback=True)) == {"buildah"}


def test_an_image_for_another_platform_needs_emulation_for_its_base_alone():
    ready = replace(BARE, programs=ALL, able=("buildah 1.28",))
    actions = plan(ready, ARM64)
    assert packages(actions) == {"arch-test", "qemu-user-static"}
    assert "binfmt_misc" in actions[-1].commands[0][-1]
    emulating = replace(ready, programs=ALL | {"arch-test", "qemu-aarch64-static"}, emulated=frozenset({AMD64, ARM64}))
    assert plan(emulating, ARM64) == []


CLOSED = replace(BARE, root=False, user="ann", programs=ALL | {"dockerd"}, barred=True)


def test_a_user_whom_docker_does_not_let_in_joins_its_group():
    (action,) = plan(CLOSED, AMD64)
    assert action.commands == (("usermod", "--append", "--groups", "docker", "ann"),)
    assert action.enters
    (action,) = plan(replace(CLOSED, member=True), AMD64)
    assert (action.commands, action.enters) == ((), True)


def test_a_user_who_has_all_that_is_needed_is_left_alone():
    for able in ("Docker 28", "buildah 1.28"):
        assert plan(replace(CLOSED, able=(able,)), AMD64) == []


def test_a_user_needs_uidmap_where_root_does_not():
    assert packages(plan(replace(CLOSED, able=("Docker 28",), programs=ALL - {"newuidmap"}), AMD64)) == {"uidmap"}


def test_an_unknown_distribution_is_told_what_to_install():
    with pytest.raises(EnvironmentLacks) as told:
        plan(replace(BARE, distribution=Distribution("fedora", "42", "Fedora Linux 42")), AMD64)
    assert told.value.status == 3
    assert "mmdebstrap" in told.value.why


def test_a_stopped_docker_is_started_though_buildah_would_do():
    stopped = replace(
        BARE, programs=ALL | {"dockerd", "buildah"}, able=("buildah 1.28",), refused=("docker: no daemon",)
    )
    (action,) = plan(stopped, AMD64)
    command = action.commands[0][-1]
    assert "service docker start" in command or "systemctl" in " ".join(action.commands[0])
    if "service" in command:
        assert command.index("rm -f /var/run/docker.pid") < command.index("service docker start")
    assert plan(replace(stopped, root=False), AMD64) == [], "what works is left alone where we may not start it"
    assert plan(stopped, AMD64, fallback=True) == [], "a start that was tried is not tried again"
