"""Containers of real engines: what goes in, what comes out, and that nothing is left."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkforge.core.errors import CheckFailed, EnvironmentLacks
from sparkforge.engine.docker import Docker, clients
from sparkforge.engine.engine import Launch, Mount

pytestmark = pytest.mark.engine


def until(true, seconds=20.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def docker(engine):
    if engine.name != "docker":
        pytest.skip("of Docker alone")
    return engine


def test_words_variables_and_the_user_come_in_and_both_streams_come_out(started):
    container = started("once", "a b", env={"KEY": "a=b c"}, user="12345:0")
    assert container.wait(timeout=30) == 0
    log = container.logs()
    for line in ("word a b", "env KEY=a=b c", "user 12345:0", "on standard error"):
        assert line in log.splitlines()
    assert not container.alive()


def test_the_images_own_words_run_where_none_are_given(started):
    container = started()
    assert container.wait(timeout=30) == 0
    assert "word once" in container.logs()


def test_a_status_is_that_of_the_program(started):
    assert started("fail", "7").wait(timeout=30) == 7


def test_stop_is_sigterm_and_then_sigkill(started):
    for word, codes in (("serve", {0}), ("deaf", {137, -9})):
        container = started(word)
        until(lambda it=container: "waiting" in it.logs())
        assert container.alive()
        assert container.stop(grace=2) in codes
        assert ("ended by SIGTERM" in container.logs()) is (word == "serve")


def test_waiting_is_bounded(started):
    container = started("serve")
    with pytest.raises(CheckFailed, match="did not end within 1 s"):
        container.wait(timeout=1)
    assert container.alive()


def test_another_command_runs_in_it(started):
    container = started("serve", user="12345:0")
    until(lambda: "waiting" in container.logs())
    done = container.exec(["/do", "once", "more"])
    assert (done.code, b"word more" in done.out, b"user 12345:0" in done.out) == (0, True, True)
    assert b"on standard error" in done.err
    assert container.exec(["/do", "fail", "3"], check=False).code == 3
    with pytest.raises(CheckFailed, match="status 3"):
        container.exec(["/do", "fail", "3"])


def test_removing_twice_is_no_error_and_leaves_nothing(engine, started):
    container = started("deaf")
    container.remove()
    container.remove()
    words = ["ps", "--all", "--quiet", "--filter"] if engine.name == "docker" else ["containers", "--quiet", "--filter"]
    listed = subprocess.run(
        [engine.program, *words, f"name={container.id}"], capture_output=True, text=True, check=True
    )
    assert listed.stdout.strip() == ""


def test_a_container_that_is_being_removed_is_no_error(docker, started):
    container = started("deaf")
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(container.remove) for _ in range(4)]:
            done.result()


def test_folders_are_mounted(started, tmp_path):
    tmp_path.chmod(0o755)
    container = started("once", mounts=[Mount(tmp_path, "/here", read_only=True)])
    assert container.wait(timeout=30) == 0


def test_files_are_read_and_links_are_followed(engine, image):
    whole = engine.read(image, "/do")
    assert whole[:4] == b"\x7fELF"
    assert engine.read(image, "/links/do") == whole
    with pytest.raises(Exception, match="nothing"):
        engine.read(image, "/nothing")


def test_images_are_found_by_their_labels_the_newest_first(engine, made):
    mine = {"dev.sparkforge.test": f"{time.monotonic_ns()}"}
    assert engine.find(mine) == []
    first = made(engine, {**mine, "turn": "1"})
    time.sleep(1.1)  # some engines count seconds
    second = made(engine, {**mine, "turn": "2"})
    assert engine.find(mine) == [second, first]
    assert engine.find({**mine, "turn": "1"}) == [first]
    assert engine.labels(first)["turn"] == "1"


def test_an_image_that_is_not_there(engine):
    with pytest.raises(CheckFailed, match="there is no image"):
        engine.run(Launch("localhost/sparkforge-test/nothing:1"))


def test_what_docker_is_told_is_what_its_client_would_tell_it(docker, image):
    """The same container, made by us and by `docker create`: everything that they hold is equal."""
    launch = Launch(
        image,
        ("once", "x"),
        env={"A": "b"},
        user="12:0",
        mounts=[Mount(Path("/tmp"), "/here", read_only=True), Mount(Path("a-volume"), "/there")],
        ports=[8123],
        ipc="host",
        shm="3m",
        devices=["/dev/null"],
        capabilities=["IPC_LOCK"],
        ulimits={"memlock": -1},
        gpus=True,
    )
    words = "--env A=b --user 12:0 --volume /tmp:/here:ro --volume a-volume:/there --publish 127.0.0.1:8123:8123"
    words += " --ipc host --shm-size 3m --device /dev/null --cap-add IPC_LOCK --ulimit memlock=-1 --gpus all"
    client = [docker.program, "create", *words.split(), image, "once", "x"]
    theirs = subprocess.run(client, capture_output=True, text=True, check=True).stdout.strip()
    daemon = docker._daemon
    ours = daemon.containers.create(**docker._options(launch)).id
    try:
        one, other = (daemon.api.inspect_container(each) for each in (ours, theirs))
    finally:
        for each in (ours, theirs):
            daemon.api.remove_container(each, force=True, v=True)
        daemon.api.remove_volume("a-volume")

    def told(of):
        """With one spelling for what is empty, and without three things that only look different: the restart policy
        (`no` or nothing), what is attached, and targets of mounts, which the SDK names twice."""
        if isinstance(of, dict):
            left = {"RestartPolicy", "Hostname", "AttachStdout", "AttachStderr", "Volumes"}
            return {name: told(value) for name, value in of.items() if name not in left}
        return [told(one) for one in of] if isinstance(of, list) and of else of or None

    assert told(one["HostConfig"]) == told(other["HostConfig"])
    assert told(one["Config"]) == told(other["Config"])


def test_a_name_that_is_taken_says_how_to_free_it(docker, image, started):
    first = started("serve")
    with pytest.raises(CheckFailed) as refused:
        docker.run(Launch(image, ("once",), name=first.id))
    assert f"docker rm --force {first.id}" in refused.value.do
    assert first.alive()


def test_a_container_that_cannot_start_is_removed(docker, image):
    name = f"sparkforge-test-{time.monotonic_ns()}"
    with pytest.raises(CheckFailed, match="could not start"):
        docker.run(Launch(image, entrypoint="/nothing", name=name))
    assert docker._daemon.containers.list(all=True, filters={"name": name}) == []


def test_gpus_that_docker_cannot_give_are_status_3_and_name_the_toolkit(docker, image):
    if Path("/usr/bin/nvidia-container-runtime").exists():
        pytest.skip("this Docker gives GPUs")
    with pytest.raises(EnvironmentLacks) as lacks:
        docker.run(Launch(image, ("once",), gpus=True))
    assert "nvidia-container-toolkit" in lacks.value.do


def test_no_daemon_is_status_3_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    for docker in clients()[:1] or [Docker("docker")]:
        assert docker.answer() is None
        assert "No such file or directory" in docker.prove().reason
        with pytest.raises(EnvironmentLacks) as lacks:
            docker.has("x")
        assert (lacks.value.status, lacks.value.do) == (3, "invoke setup")
