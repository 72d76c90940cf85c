"""Setup on this machine, as it is: it must tell, and without rights it must not do."""

import pytest

from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.platforms import Platform
from sparkforge.host import setup


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
