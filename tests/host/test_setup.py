"""Setup on this machine, as it is: it must tell, and without rights it must not do."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.platforms import AMD64, Platform
from sparkforge.host import setup

_spec = importlib.util.spec_from_file_location("host_plans", Path(__file__).with_name("test_plan.py"))
plans = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(plans)


class Machine:
    """Plays a machine: each look gives the next host, and commands are noted instead of run."""

    def __init__(self, monkeypatch, *hosts, sudo=True, executed=None):
        self.hosts, self.ran, self.sudo = list(hosts), [], sudo
        monkeypatch.setattr(setup, "_look", lambda *_: self.hosts.pop(0) if len(self.hosts) > 1 else self.hosts[0])
        monkeypatch.setattr(setup, "run", self.run)
        monkeypatch.setattr(setup, "barred", lambda: True)
        monkeypatch.setattr(setup.os, "execvp", self.become)
        monkeypatch.setattr(setup.sys, "argv", ["/venv/bin/invoke", "setup", "build", "--target", "cpu"])
        monkeypatch.delenv(setup._ENTERED, raising=False)

    def run(self, words, **_):
        self.ran.append(" ".join(words))
        return SimpleNamespace(code=0 if self.sudo or words[:2] != ["sudo", "-n"] else 1)

    def become(self, program, words):
        self.ran.append(" ".join(words))
        raise SystemExit(0)  # nothing comes back


NEW = replace(plans.BARE, root=False, user="ann", programs=frozenset({"apt-get", "sudo"}))
INSTALLED = replace(plans.CLOSED, member=False)
READY = replace(plans.CLOSED, able=("Docker 28 through /usr/bin/docker",), barred=False)


def test_a_user_with_sudo_gets_all_of_it_and_goes_on_in_the_group_docker(store, monkeypatch, capsys):
    machine = Machine(monkeypatch, NEW, INSTALLED)
    with pytest.raises(SystemExit):
        setup.setup(store, AMD64)
    sudo = "sudo -n env DEBIAN_FRONTEND=noninteractive"
    assert machine.ran[0] == "sudo -n true"
    assert machine.ran[1] == f"{sudo} apt-get update"
    assert machine.ran[2].startswith(f"{sudo} apt-get install --yes")
    assert machine.ran[3].startswith(f"{sudo} sh -c pgrep")
    assert machine.ran[-2:] == [
        f"{sudo} usermod --append --groups docker ann",
        "sg docker -c /venv/bin/invoke setup build --target cpu",
    ]
    assert f"$ {sudo} apt-get update" in capsys.readouterr().err


def test_a_user_without_sudos_leave_gets_the_lines_and_the_command_that_goes_on(store, monkeypatch):
    machine = Machine(monkeypatch, NEW, sudo=False)
    with pytest.raises(EnvironmentLacks) as told:
        setup.setup(store, AMD64)
    assert told.value.status == 3
    assert machine.ran == ["sudo -n true"]
    lines = [line.strip() for line in told.value.do.splitlines()]
    assert lines[0] == "run these lines; the last one goes on with what you asked for:"
    assert lines[1] == "sudo apt-get update"
    assert lines[2].startswith("sudo apt-get install --yes")
    assert lines[-2] == "sudo usermod --append --groups docker ann"
    assert lines[-1] == "sg docker -c '/venv/bin/invoke setup build --target cpu'"


def test_a_member_whose_login_is_older_needs_no_root(store, monkeypatch):
    machine = Machine(monkeypatch, replace(INSTALLED, member=True), sudo=False)
    with pytest.raises(SystemExit):
        setup.setup(store, AMD64)
    assert machine.ran == ["sg docker -c /venv/bin/invoke setup build --target cpu"]


def test_a_socket_that_stays_closed_ends_it(store, monkeypatch):
    Machine(monkeypatch, replace(INSTALLED, member=True))
    monkeypatch.setenv(setup._ENTERED, "1")
    with pytest.raises(EnvironmentLacks, match="closed to this login") as told:
        setup.setup(store, AMD64)
    assert "log out and in again, then: /venv/bin/invoke setup build --target cpu" in told.value.do


def test_a_user_who_has_everything_is_never_stopped(store, monkeypatch):
    machine = Machine(monkeypatch, READY, sudo=False)
    assert setup.setup(store, AMD64) == []
    assert machine.ran == []


@pytest.mark.slow
def test_a_machine_that_lacks_something_and_no_rights_gets_the_commands(store, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sparkforge.host.detect._path", lambda: "/nowhere")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(EnvironmentLacks) as told:
        setup.setup(store, Platform.host())
    assert told.value.status == 3
    assert "apt-get install --yes" in told.value.do
    assert "mmdebstrap" in told.value.do


@pytest.mark.slow
def test_a_dry_run_does_nothing(store, monkeypatch, capsys):
    monkeypatch.setattr("sparkforge.host.detect._path", lambda: "/nowhere")
    actions = setup.setup(store, Platform.host(), dry_run=True)
    assert actions
    assert "why:" in capsys.readouterr().err


@pytest.mark.engine
def test_a_ready_machine_stays_as_it_is(store, capsys):
    if setup.missing(store, Platform.host()):
        pytest.skip("this machine is not set up: invoke setup")
    assert setup.setup(store, Platform.host()) == []
    assert "ready, nothing to do" in capsys.readouterr().err
