"""`invoke serve` as a process with a real container: signals, what is published, and where the key goes."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkforge.core.paths import ROOT
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.engine.choose import candidates, proven

pytestmark = pytest.mark.engine

_spec = importlib.util.spec_from_file_location("engine_conftest", ROOT / "tests" / "engine" / "conftest.py")
_engine = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_engine)
made = _engine.made

INVOKE = Path(sys.executable).with_name("invoke")
SECRET = "not-for-ps"


def docker(*words):
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def image(made):
    able = [one for one in candidates("docker") if proven(Store.open(), one).able]
    if not able:
        pytest.skip("no working Docker here: invoke setup")
    labels = {"stack": "vllm-0.21", "target": "cpu", "platform": Platform.host().oci}
    return made(able[0], {f"dev.sparkforge.{name}": value for name, value in labels.items()})


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def serving(image, port, tmp_path):
    """Starts `invoke serve` on that image, and waits until its container waits."""
    begun = []

    def start(*words, image=image, front=(), **env):
        log = tmp_path / f"log-{len(begun)}"
        every = [*front, INVOKE, "serve", "--profile", "tiny", "--image", image, "--port", str(port), *words]
        own = {**os.environ, "HOME": str(tmp_path), **env}
        with log.open("wb") as out:
            # A shell starts what it runs in the background with SIGINT ignored, and that would be kept.
            process = subprocess.Popen(
                every,
                cwd=ROOT,
                env=own,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  no thread forks here
            )
        begun.append(process)
        process.said = log.read_text
        end = time.monotonic() + 60
        while "\nwaiting\n" not in process.said() and process.poll() is None:
            assert time.monotonic() < end, process.said()
            time.sleep(0.1)
        return process

    yield start
    for process in begun:
        process.kill()
        process.wait()
    for one in left(port).split():
        docker("rm", "--force", one)


def left(port):
    return docker("ps", "--all", "--quiet", "--filter", f"name=^sparkforge-tiny-{port}$")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_server_and_leaves_no_container(serving, port, number):
    process = serving()
    assert left(port) != ""
    process.send_signal(number)
    assert process.wait(60) == 0, process.said()
    assert left(port) == ""
    assert "ended by SIGTERM" in process.said()


def test_a_signal_that_is_ignored_stays_ignored(serving, port):
    process = serving(front=("nohup",))
    process.send_signal(signal.SIGHUP)
    time.sleep(2)
    assert (process.poll(), bool(left(port))) == (None, True)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, process.said()
    assert left(port) == ""


def test_a_second_signal_does_not_wait_for_a_deaf_server(serving, port):
    process = serving("--flags", "--deaf")
    process.send_signal(signal.SIGINT)
    time.sleep(2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130, process.said()
    assert left(port) == ""


def test_a_server_that_ends_by_itself_leaves_no_container_and_its_status_is_told(serving, port):
    process = serving("--flags", "--fail")
    assert process.wait(60) == 1, process.said()
    assert "the server ended with status 7" in process.said()
    assert left(port) == ""


def test_it_is_published_on_loopback_unless_a_host_is_named(serving, port):
    serving()
    assert docker("port", f"sparkforge-tiny-{port}") == f"{port}/tcp -> 127.0.0.1:{port}"


def test_a_named_host_is_published_and_without_a_key_that_is_said(serving, port):
    process = serving("--host", "0.0.0.0")
    assert f"{port}/tcp -> 0.0.0.0:{port}" in docker("port", f"sparkforge-tiny-{port}")
    assert "warning: everybody who reaches 0.0.0.0" in process.said()


@pytest.mark.parametrize("how", ["file", "variable"])
def test_a_key_reaches_the_server_and_no_command_line(serving, tmp_path, how):
    (tmp_path / "key").write_text(f"{SECRET}\n")
    words, env = ((), {"VLLM_API_KEY": SECRET}) if how == "variable" else (("--api-key-file", tmp_path / "key"), {})
    process = serving(*words, "--host", "0.0.0.0", **env)
    said = process.said()
    assert said.count(SECRET) == 1, said  # the server's own word
    assert f"env VLLM_API_KEY={SECRET}" in said
    assert "warning" not in said
    assert SECRET not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_a_second_server_is_told_which_container_is_in_its_way(serving, port):
    first = serving()
    second = serving()
    assert second.wait(30) == 1
    assert f"docker rm --force sparkforge-tiny-{port}" in second.said()
    assert first.poll() is None
    assert left(port) != ""
