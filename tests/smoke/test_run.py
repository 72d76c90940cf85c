import json
import os
import signal
from dataclasses import dataclass, replace

import pytest

from sparkforge.core.errors import BadInput, CheckFailed, EnvironmentLacks
from sparkforge.core.store import Store
from sparkforge.engine import gpu
from sparkforge.smoke.checks import CheckVerdict
from sparkforge.smoke.run import Bounds, image_site, smoke
from sparkforge.smoke.venv_site import VenvSite

PATIENT = Bounds(start=60.0, silence=60.0, stop=60.0)  # whatever else the machine does
IMPATIENT = replace(PATIENT, stop=1.0)
NEVER_GONE = {"ignores SIGTERM", "leaves a child"}


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def verdicts(report):
    return {one.name: one.verdict.value for one in report.checks}


def test_a_right_server_passes_and_nothing_stays(fake_venv, store, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report = smoke(VenvSite(fake_venv()), store=store, bounds=PATIENT)
    assert report.passed, report.table()
    report.demand()
    assert verdicts(report) == {
        "first token": "passed",
        "completion": "passed",
        "stream": "passed",
        "deterministic": "passed",
        "chat": "passed",
        "regret": "passed",
        "shutdown": "passed",
        "as another user": "skipped",
    }
    assert list(tmp_path.glob("sparkforge-smoke-*")) == []
    assert json.loads(report.json())["passed"] is True
    assert "all 7 checks passed" in report.summary


@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        ("dies", "first token"),
        ("status", "first token"),
        ("usage off", "completion"),
        ("one piece", "stream"),
        ("nondeterministic", "deterministic"),
        ("no template", "chat"),
        ("status 3", "shutdown"),
        ("traceback", "shutdown"),
        ("ignores SIGTERM", "shutdown"),
        ("leaves a child", "shutdown"),
    ],
)
def test_a_fault_fails_its_check_and_shows_the_log(fake_venv, store, capsys, fault, failing):
    report = smoke(VenvSite(fake_venv(fault)), store=store, bounds=IMPATIENT if fault in NEVER_GONE else PATIENT)
    assert not report.passed
    assert verdicts(report)[failing] == "failed"
    assert failing in report.summary.partition("FAILED: ")[2]
    assert "fake server: words" in report.log
    assert "fake server: words" in capsys.readouterr().err
    with pytest.raises(CheckFailed):
        report.demand()


def test_tokens_of_another_model_fail(fake_venv, store):
    report = smoke(VenvSite(fake_venv(regret=0.5)), store=store, bounds=PATIENT)
    assert verdicts(report)["regret"] == "failed"


def test_a_server_that_never_speaks_is_given_up(fake_venv, store):
    report = smoke(VenvSite(fake_venv("silent")), store=store, bounds=Bounds(start=1.5, stop=1.0))
    assert [(one.name, one.verdict) for one in report.checks[:-1]] == [("first token", CheckVerdict.FAILED)]


def test_given_weights_are_served_without_a_reference(fake_venv, tmp_path):
    report = smoke(VenvSite(fake_venv()), model=tmp_path, bounds=PATIENT)
    assert report.passed
    assert "regret" not in verdicts(report)


def test_weights_that_are_not_there_are_refused(fake_venv, tmp_path):
    with pytest.raises(BadInput):
        smoke(VenvSite(fake_venv()), model=tmp_path / "none", bounds=PATIENT)


def test_a_directory_without_vllm_is_refused(tmp_path):
    with pytest.raises(BadInput):
        VenvSite(tmp_path)


@dataclass(frozen=True)
class Users(VenvSite):
    """A site that notes as whom it was asked to start, and starts as ourselves."""

    users: bool = True

    def start(self, model, flags, env, *, user):
        self.asked_for.append(user)
        return super().start(model, flags, env, user=None)


def test_a_second_server_runs_as_a_stranger(fake_venv, store, monkeypatch):
    asked = []
    monkeypatch.setattr(Users, "asked_for", asked, raising=False)
    report = smoke(Users(fake_venv()), store=store, bounds=PATIENT)
    assert report.passed
    assert asked == [None, "12345:0"]
    assert {"first token as 12345", "completion as 12345", "shutdown as 12345"} <= verdicts(report).keys()


def test_removing_a_server_that_runs_leaves_nothing(fake_venv, tmp_path, monkeypatch):
    started = VenvSite(fake_venv("ignores SIGTERM")).start(tmp_path, [], {}, user=None)
    started.remove()
    with pytest.raises(ProcessLookupError):
        os.killpg(started.process.pid, signal.SIGKILL)
    assert not started.scratch.exists()
    started.remove()  # twice is no error


class Holder:
    """An engine that holds an image of a target."""

    def __init__(self, target):
        self.target = target

    def labels(self, tag):
        return {"dev.sparkforge.target": self.target}


@pytest.mark.parametrize(("target", "label"), [("serve", "serve"), ("", "serve")])
def test_an_image_that_needs_a_gpu_is_refused_before_anything_starts(monkeypatch, tmp_path, target, label):
    monkeypatch.setattr(gpu, "DEV", tmp_path)
    monkeypatch.setattr(gpu, "DRIVER", tmp_path)
    monkeypatch.setattr("sparkforge.smoke.run.choose.find", lambda *_: Holder(label))
    with pytest.raises(EnvironmentLacks, match="needs an NVIDIA GPU") as lacks:
        image_site(None, "an-image", target=target)
    assert lacks.value.status == 3


@pytest.mark.parametrize(("label", "gpus"), [("serve", True), ("cpu", False)])
def test_an_image_of_target_serve_gets_the_gpus(monkeypatch, tmp_path, label, gpus):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpu, "DEV", tmp_path)
    monkeypatch.setattr("sparkforge.smoke.run.choose.find", lambda *_: Holder(label))
    assert image_site(None, "an-image").gpus is gpus
