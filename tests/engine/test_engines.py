"""Engines: what they are asked before they are trusted, and what they make of archives and histories."""

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from sparkforge.core.errors import BadInput, CheckFailed, EnvironmentLacks
from sparkforge.core.platforms import AMD64, ARM64, Platform
from sparkforge.engine import archive, proof
from sparkforge.engine.buildah import _inside
from sparkforge.engine.choose import candidates, choose, find, proven
from sparkforge.engine.docker import Docker, _makes_layer, clients


@pytest.mark.parametrize(("platform", "machine"), [(AMD64, 62), (ARM64, 183)])
def test_the_proofs_program_is_an_elf_file_of_its_platform(platform, machine):
    program = proof.look(platform)
    assert program[:4] == b"\x7fELF"
    assert int.from_bytes(program[18:20], "little") == machine
    assert program.endswith(b"/mounted/word\0")


def test_the_proofs_program_fails_where_its_mount_is_missing(tmp_path):
    proof.lay(tmp_path, Platform.host())
    assert not Path("/mounted/word").exists()
    assert subprocess.run([tmp_path / "look"], check=False).returncode == 1


def test_the_line_that_says_most():
    said = "Step 1\nERROR: BuildKit is enabled but the buildx component is missing\n  Install it:\n  http://x/"
    assert proof.last_line(f"docker build .\n{said}").startswith("ERROR: BuildKit")
    assert proof.last_line("one\ntwo\n") == "two"
    assert proof.last_line("") == "it said nothing"


def test_an_archive_has_the_same_bytes_each_time_and_the_id_of_its_configuration(tmp_path):
    root = tmp_path / "root.tar"
    with tarfile.open(root, "w") as tar:
        tar.addfile(tarfile.TarInfo("etc"), io.BytesIO())
    given = {"tag": "localhost/x:1", "platform": ARM64, "made_by": "test", "labels": {"a": "b"}}
    first = archive.write(root, tmp_path / "1.tar", **given)
    assert archive.write(root, tmp_path / "2.tar", **given) == first
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    with tarfile.open(tmp_path / "1.tar") as tar:
        manifest = json.load(tar.extractfile("manifest.json"))[0]
        config = tar.extractfile(manifest["Config"]).read()
    assert first == f"sha256:{hashlib.sha256(config).hexdigest()}"
    assert json.loads(config)["architecture"] == "arm64"


@pytest.mark.parametrize(
    ("line", "layer"),
    [
        ("COPY /opt/venv /opt/venv # buildkit", True),
        ("RUN |1 A=b /bin/sh -c true # buildkit", True),
        ("WORKDIR /home/vllm", True),
        ("ENV A=b", False),
        ("HEALTHCHECK &{[]}", False),
        ('ENTRYPOINT ["/x"]', False),
        ("mmdebstrap bookworm", True),
        ("/bin/sh -c #(nop)  ENV A=b", False),
        ("/bin/sh -c #(nop) COPY dir:1 in / ", True),
        ("/bin/sh -c apt-get update", True),
    ],
)
def test_which_lines_of_a_history_are_layers(line, layer):
    assert _makes_layer(line) is layer


def test_links_of_an_image_lead_to_the_images_own_files(tmp_path):
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr" / "file").write_text("inside")
    (tmp_path / "lib").symlink_to("/usr")
    (tmp_path / "loop").symlink_to("loop")
    assert _inside(tmp_path, "/lib/file") == tmp_path / "usr" / "file"
    (tmp_path / "up").symlink_to("../../../../usr")
    assert _inside(tmp_path, "/up/file") == tmp_path / "usr" / "file"


def client(folder, script):
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_every_client_on_path_is_a_candidate_in_order(tmp_path, monkeypatch):
    one, two = client(tmp_path / "a", "exit 1"), client(tmp_path / "b", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/b")
    assert [engine.program for engine in clients()][:2] == [str(one), str(two)]


@pytest.fixture
def answering(monkeypatch):
    """A daemon that answers, whether or not one runs here; what builds is the client."""
    monkeypatch.setattr(Docker, "_version", lambda _: "1 on Linux 6")
    monkeypatch.setattr(Docker, "untag", lambda *_: None)


def test_a_docker_without_its_daemon_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    program = str(client(tmp_path, "exit 0"))
    verdict = Docker(program).prove()
    assert not verdict.able
    assert program in verdict.reason


def test_a_client_that_cannot_build_is_refused_with_its_own_words(tmp_path, answering):
    verdict = Docker(str(client(tmp_path, "echo ERROR: no buildx >&2; exit 1"))).prove()
    assert (verdict.able, "ERROR: no buildx" in verdict.reason) == (False, True)


def test_no_engine_at_all_is_status_3_and_names_what_each_said(store, tmp_path, monkeypatch, answering):
    broken = Docker(str(client(tmp_path, "echo daemon down >&2; exit 1")))
    monkeypatch.setattr("sparkforge.engine.choose.clients", lambda: [broken])
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(EnvironmentLacks) as told:
        choose(store)
    assert told.value.status == 3
    assert "daemon down" in told.value.why
    assert told.value.do == "invoke setup"
    with pytest.raises(BadInput):
        choose(store, "podman")


@pytest.mark.engine
def test_an_engine_is_proven_once_and_the_verdict_kept(store, monkeypatch):
    engine, why = choose(store)
    assert engine.name in why.lower()

    def never(self):
        raise AssertionError("asked again")

    monkeypatch.setattr(type(engine), "prove", never)
    assert proven(store, engine).able


@pytest.mark.engine
@pytest.mark.parametrize("name", ["docker", "buildah"])
def test_an_image_made_from_an_archive_is_the_same_image_in_every_engine(store, tmp_path, name):
    able = [one for one in candidates(name) if proven(store, one).able]
    if not able:
        pytest.skip(f"no {name} that works here: invoke setup")
    engine, tag = able[0], "localhost/sparkforge-test:archive"
    root = tmp_path / "root.tar"
    with tarfile.open(root, "w") as tar:
        info = tarfile.TarInfo("etc/word")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"able\n"))
    made = archive.write(
        root, tmp_path / "image.tar", tag=tag, platform=Platform.host(), made_by="test", labels={"a": "b"}
    )
    engine.load(tmp_path / "image.tar")
    try:
        assert engine.image_id(tag) == made
        assert engine.labels(tag) == {"a": "b"}
        assert [layer.made_by for layer in engine.layers(tag)] == ["test"]
        assert engine.read(tag, "/etc/word") == b"able\n"
        assert find(store, tag, name).program == engine.program
    finally:
        engine.untag(tag)
    assert not engine.has(tag)
    with pytest.raises(CheckFailed, match="no image"):
        engine.image_id(tag)
    with pytest.raises(BadInput, match="no image"):
        find(store, tag, name)
