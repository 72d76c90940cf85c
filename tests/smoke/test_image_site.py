import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sparkforge.core.errors import CheckFailed
from sparkforge.core.proc import run
from sparkforge.core.store import Store
from sparkforge.smoke.container_site import ImageSite
from sparkforge.smoke.run import Bounds, smoke

FAKE = Path(__file__).with_name("fake_vllm.py")
PATIENT = Bounds(start=60.0, silence=60.0, stop=60.0)  # whatever else the machine does
IMPATIENT = replace(PATIENT, stop=1.0)


class Process:
    """A container that is a process of this machine; paths of the container are looked up in its mounts."""

    id = "fake"

    def __init__(self, launch, folder, python):
        self.launch, self.log, self.python, self.removed = launch, folder / "log", python, 0
        if launch.env.get("CACHES") != "lost" and not launch.entrypoint:
            next(one.source for one in launch.mounts if one.target == "/home/x/.cache").joinpath("made").touch()
        words = [sys.executable, FAKE, *launch.command]
        if launch.entrypoint:
            here = {one.target: str(one.source) for one in launch.mounts}
            words = [
                launch.entrypoint,
                *(" ".join(here.get(part, part) for part in one.split()) for one in launch.command),
            ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **launch.env})

    def alive(self):
        return self.process.poll() is None

    def logs(self):
        return self.log.read_text()

    def exec(self, command, *, check=True):
        paths = {one.target: one.source for one in self.launch.mounts}
        words = [str(paths[str(Path(word).parent)] / Path(word).name) for word in command[1:]]
        return run([self.python, *words], check=check)

    def stop(self, *, grace=30.0):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return 137

    def wait(self, *, timeout=None):
        return self.process.wait(timeout)

    def remove(self):
        self.removed += 1
        self.process.kill()
        self.process.wait()


class Processes:
    """An engine of such containers."""

    def __init__(self, folder, python, env=("HOME=/home/x",)):
        self.folder, self.python, self.env, self.made = folder, python, env, []

    def config(self, tag):
        return {"Env": list(self.env)}

    def run(self, launch):
        self.made.append(Process(launch, self.folder, self.python))
        return self.made[-1]


@pytest.fixture
def engine(fake_venv, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def make(fault="", **others):
        return Processes(tmp_path, fake_venv(fault) / "bin" / "python", **others)

    return make


def verdicts(report):
    return {one.name: one.verdict.value for one in report.checks}


def test_two_containers_run_and_are_removed_with_their_volumes(engine, tmp_path):
    engines = engine()
    report = smoke(ImageSite(engines, "an-image"), store=Store.open(tmp_path / "store"), bounds=PATIENT)
    assert report.passed, report.table()
    assert [one.launch.user for one in engines.made] == [None, "12345:0"]
    assert {"volume", "volume as 12345", "shutdown as 12345", "regret"} <= verdicts(report).keys()
    assert all(one.removed for one in engines.made)
    assert len({one.launch.mounts[-1].source for one in engines.made}) == 2
    assert list(tmp_path.glob("sparkforge-smoke-*")) == []


def test_a_container_gets_the_model_as_its_first_word_and_read_only(engine, tmp_path):
    engines = engine()
    smoke(ImageSite(engines, "an-image"), store=Store.open(tmp_path / "store"), flags=["--more=1"], bounds=PATIENT)
    launch = engines.made[0].launch
    model, work, volume = launch.mounts
    assert launch.command[0] == model.target
    assert "--more=1" in launch.command
    assert (model.read_only, work.read_only, volume.read_only) == (True, True, False)
    assert [str(port) for port in launch.ports] == [launch.command[-1]]


@pytest.mark.parametrize("fault", ["dies", "ignores SIGTERM", "nondeterministic"])
def test_a_fault_leaves_no_container_either(engine, tmp_path, fault):
    engines = engine(fault)
    bounds = IMPATIENT if fault == "ignores SIGTERM" else PATIENT
    report = smoke(ImageSite(engines, "an-image"), store=Store.open(tmp_path / "store"), bounds=bounds)
    assert not report.passed
    assert "fake server" in report.log
    assert all(one.removed for one in engines.made)
    assert list(tmp_path.glob("sparkforge-smoke-*")) == []


def test_a_volume_that_stays_empty_fails(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("sparkforge.smoke.run.ENV", {"CACHES": "lost"})
    report = smoke(ImageSite(engine(), "an-image"), store=Store.open(tmp_path / "store"), bounds=PATIENT)
    assert verdicts(report)["volume"] == "failed"


def test_an_image_without_a_home_is_refused(engine, tmp_path):
    with pytest.raises(CheckFailed, match="HOME"):
        smoke(ImageSite(engine(env=()), "an-image"), store=Store.open(tmp_path / "store"), bounds=PATIENT)


def test_files_of_another_user_are_removed_by_the_engine(engine, tmp_path, monkeypatch):
    engines, refused = engine(), []
    remove = shutil.rmtree

    def rmtree(path, **words):
        if (path / "volume" / "made").exists():
            refused.append(path)
            raise PermissionError(path)
        remove(path, **words)

    monkeypatch.setattr("shutil.rmtree", rmtree)
    report = smoke(ImageSite(engines, "an-image"), store=Store.open(tmp_path / "store"), bounds=PATIENT)
    assert report.passed
    assert len(refused) == 2
    sweepers = [one for one in engines.made if one.launch.entrypoint]
    assert [one.launch.user for one in sweepers] == ["0:0", "0:0"]
    assert all(one.removed for one in sweepers)
    assert list(tmp_path.glob("sparkforge-smoke-*")) == []
