"""The `ngc` base from a registry on this machine that holds a stand-in under the same name: pulled, pinned, refused."""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import tarfile
import time
from pathlib import Path

import msgspec
import pytest
import requests

from sparkforge.core.errors import BadInput, EnvironmentLacks
from sparkforge.core.platforms import Platform
from sparkforge.engine import archive
from sparkforge.image import base
from sparkforge.image.bootstrap import packages
from sparkforge.inputs.recipes import UNPINNED, load_stack

pytestmark = [pytest.mark.engine, pytest.mark.slow]
STACK = load_stack()
HERE = Path(__file__).parent
OTHER = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Debian's docker-registry on loopback; its address and its folder."""
    if shutil.which("docker-registry") is None:
        pytest.skip("no docker-registry here: apt-get install docker-registry, as .ci/run does")
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\nhttp: {{addr: '{address}'}}\n"
    (folder / "config.yml").write_text(config)
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stdout=log, stderr=log)
    try:
        wait(address, server, folder / "log")
        yield address, folder / "data"
    finally:
        server.terminate()
        server.wait(10)


def wait(address, server, log):
    end = time.monotonic() + 20
    while time.monotonic() < end and server.poll() is None:
        try:
            requests.get(f"http://{address}/v2/", timeout=1)
        except requests.ConnectionError:
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"docker-registry did not start: {log.read_text()[-500:]}")


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    program = tmp_path_factory.mktemp("shell") / "sh"
    subprocess.run(["g++", "-static", "-O1", "-x", "c", HERE / "sh.c", "-o", program], check=True)
    return program.read_bytes()


class Registry:
    """A stand-in for NVIDIA's registry: the same repository and tag, of an image whose /etc/word says which it is."""

    def __init__(self, engine, served, shell, folder):
        self.engine, (self.address, self.data), self.shell, self.folder = engine, served, shell, folder
        self.image = f"{self.address}/{STACK.bases['ngc'].image.partition('/')[2]}"
        self.name, _, self.tag = self.image.rpartition(":")

    def push(self, word: str) -> str:
        """Give the tag to an image; the digest that the registry has for it then."""
        root = self.folder / "root.tar"
        with tarfile.open(root, "w") as tar:
            for name, data, mode in (("bin/sh", self.shell, 0o755), ("etc/word", word.encode(), 0o644)):
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(data), mode
                tar.addfile(info, io.BytesIO(data))
        file = self.folder / "image.tar"
        archive.write(root, file, tag=self.image, platform=Platform.host(), made_by="test", labels={})
        self.engine.load(file)
        insecure = ["--tls-verify=false"] if self.engine.name == "buildah" else []
        subprocess.run([self.engine.program, "push", *insecure, self.image], check=True, capture_output=True)
        self.forget()
        accept = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
        url = f"http://{self.address}/v2/{self.name.partition('/')[2]}/manifests/{self.tag}"
        said = requests.head(url, headers={"Accept": accept}, timeout=5)
        return said.headers["Docker-Content-Digest"]

    def forget(self) -> None:
        """Take from the engine all that came from here, so that it has to be pulled again."""
        words = [self.engine.program, "images", "--quiet", "--no-trunc", "--filter", f"reference={self.name}"]
        for image in {*subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()}:
            subprocess.run([self.engine.program, "rmi", "--force", image], check=False, capture_output=True)

    def change(self, digest: str) -> None:
        """Change a byte of a manifest where the registry keeps it; it goes on serving it under the same digest."""
        sha = digest.partition(":")[2]
        (blob,) = self.data.rglob(f"blobs/sha256/{sha[:2]}/{sha}/data")
        blob.write_bytes(blob.read_bytes().replace(b'"size"', b'"Size"', 1))

    def stack(self, digest=UNPINNED):
        """The stack with the stand-in's address."""
        pin = msgspec.structs.replace(STACK.bases["ngc"], image=self.image, digest=digest)
        return msgspec.structs.replace(STACK, bases={"ngc": pin})


@pytest.fixture
def registry(engine, served, shell, tmp_path, monkeypatch):
    # Docker takes a registry on loopback without TLS; buildah has to be told.
    allowed = tmp_path / "registries.conf"
    allowed.write_text(f'[[registry]]\nlocation = "{served[0]}"\ninsecure = true\n')
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(allowed))
    made = Registry(engine, served, shell, tmp_path)
    yield made
    made.forget()


@pytest.fixture
def ensured(engine, store):
    """Bases as a build makes them, with the word that each holds; their images are removed."""
    tags = set()

    def ensure(stack, *, locked=False):
        made = base.ensure(engine, store, stack, "ngc", Platform.host(), locked=locked)
        tags.add(made.tag)
        return made, engine.read(made.tag, "/etc/word").decode()

    yield ensure
    for tag in tags:
        if engine.has(tag):
            engine.untag(tag)


def test_what_was_pulled_unpinned_is_recorded_and_pulled_again_by_its_digest(registry, ensured, engine, capsys):
    first = registry.push("one")
    made, word = ensured(registry.stack())
    assert (made.digest, made.name, word) == (first, registry.image, "one")
    assert f"is not pinned; what came now is {first}" in " ".join(capsys.readouterr().err.split())
    ran = engine.read(made.tag, "/ran").decode()
    assert "apt-get install" in ran
    assert all(f" {package} " in ran for package in packages())
    assert registry.push("two") != first  # the tag moves
    engine.untag(made.tag)
    assert ensured(registry.stack()) == (made, "one")


def test_a_recorded_digest_is_pinned_and_then_locked_takes_it(registry, ensured):
    first, second = registry.push("one"), registry.push("two")
    with pytest.raises(BadInput, match="not pinned"):
        ensured(registry.stack(), locked=True)
    for digest, word in ((first, "one"), (second, "two")):
        made, held = ensured(registry.stack(digest), locked=True)
        assert (made.digest, held) == (digest, word)


@pytest.mark.parametrize("kind", ["unknown", "other content"])
def test_a_digest_that_the_registry_does_not_hold_is_refused_and_nothing_is_kept(registry, ensured, store, kind):
    digest = OTHER
    if kind == "other content":
        digest = registry.push("one")
        registry.change(digest)
    with pytest.raises(EnvironmentLacks, match="could not be pulled") as told:
        ensured(registry.stack(digest))
    assert f"{registry.name}@{digest}" in told.value.what
    assert told.value.why
    key = base.key_for("ngc", registry.stack(digest).bases["ngc"], Platform.host())
    assert not store.has(base.KIND, key)
