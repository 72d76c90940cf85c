import dataclasses
import json
import re

import msgspec
import pytest

from sparkforge.core.errors import BadInput, EnvironmentLacks
from sparkforge.core.platforms import AMD64, ARM64, Platform
from sparkforge.engine.engine import full_tag
from sparkforge.image import base, bootstrap, disk
from sparkforge.image.bootstrap import packages
from sparkforge.inputs import fetch
from sparkforge.inputs.recipes import File, load_stack

STACK = load_stack()
OTHER = ARM64 if Platform.host() == AMD64 else AMD64


def test_packages_are_names():
    assert "python3-dev" in packages()
    assert all(re.fullmatch(r"[a-z0-9.+-]+", name) for name in packages())


def test_the_key_is_of_what_is_asked_for(monkeypatch):
    pin = STACK.bases["bootstrap"]
    first = base.key_for("bootstrap", pin, AMD64)
    assert base.key_for("bootstrap", pin, ARM64) != first
    assert base.key_for("ngc", STACK.bases["ngc"], AMD64) != first
    monkeypatch.setattr(bootstrap, "packages", lambda: ["another"])
    assert base.key_for("bootstrap", pin, AMD64) != first


def test_auto_says_why_and_keeps_its_answer(store, monkeypatch):
    monkeypatch.setattr(base, "unreachable", lambda image: "no answer")
    assert base.choose(store, STACK, "auto", AMD64) == (
        "bootstrap",
        f"the registry of {STACK.bases['ngc'].image} is not reachable: no answer",
    )
    monkeypatch.setattr(base, "unreachable", lambda image: "")
    flavor, why = base.choose(store, STACK, "auto", AMD64)
    assert (flavor, "first chosen" in why) == ("bootstrap", True)
    assert base.choose(store, STACK, "auto", ARM64)[0] == "ngc"
    assert base.choose(store, STACK, "ngc", AMD64) == ("ngc", "asked for")


def test_a_registry_that_is_not_there_is_found_out_fast():
    assert "localhost:1" in base.unreachable("localhost:1/base:1", seconds=2)


def test_an_unknown_flavor_is_named(store):
    with pytest.raises(BadInput, match="no base 'other'"):
        base.choose(store, STACK, "other", AMD64)


def test_locked_refuses_a_base_that_nobody_pinned(store):
    with pytest.raises(BadInput, match="not pinned") as told:
        base.ensure(None, store, STACK, "ngc", AMD64, locked=True)
    assert "bases.ngc.digest" in told.value.why


class Held:
    """An engine that holds every image, under one id."""

    name = "held"

    def has(self, tag):
        return True

    def image_id(self, tag):
        return "sha256:" + "a" * 64


def test_a_base_that_is_not_the_pinned_one_is_refused(store):
    pinned = msgspec.structs.replace(STACK.bases["bootstrap"], digest="sha256:" + "b" * 64)
    stack = msgspec.structs.replace(STACK, bases={"bootstrap": pinned})
    folder = store.path(base.KIND, base.key_for("bootstrap", pinned, AMD64))
    folder.mkdir(parents=True)
    (folder / "base.json").write_text(json.dumps({"image": "sha256:" + "a" * 64}))
    with pytest.raises(Exception, match="not the pinned one") as told:
        base.ensure(Held(), store, stack, "bootstrap", AMD64)
    assert "b" * 64 in told.value.why
    assert "a" * 64 in told.value.why


class Registry(Held):
    """An engine whose registry has moved the tag between two pulls."""

    def __init__(self, folder):
        self.pulled, self.tags, self.folder = [], set(), folder

    def has(self, tag):
        return tag in self.tags

    def pull(self, reference, platform):
        self.pulled.append(reference)
        return f"sha256:{len(self.pulled):064}"

    def build(self, recipe):
        self.tags.add(recipe.tag)


def test_a_registrys_image_is_recorded_when_pulled_and_pulled_by_that_again(store, capsys):
    engine, image = Registry(store.root), STACK.bases["ngc"].image
    first = base.ensure(engine, store, STACK, "ngc", Platform.host())
    assert first.digest == f"sha256:{1:064}"
    assert "not pinned" in capsys.readouterr().err
    assert base.ensure(engine, store, STACK, "ngc", Platform.host()) == first
    assert engine.pulled == [image]
    engine.tags.clear()
    assert base.ensure(engine, store, STACK, "ngc", Platform.host()).digest == first.digest
    assert engine.pulled[1].endswith("@" + first.digest)


def test_the_mirrors_are_this_machines_own_or_nobodys():
    lines = bootstrap.mirrors()
    assert all(re.match(r"deb (\[signed-by=/\S+\] )?\S+ bookworm\S* \S+$", line) for line in lines)


def test_a_platform_that_does_not_run_here_is_named(monkeypatch):
    monkeypatch.setattr(bootstrap, "emulates", lambda platform: False)
    bootstrap.check_emulation(Platform.host())
    with pytest.raises(EnvironmentLacks) as told:
        bootstrap.check_emulation(OTHER)
    assert told.value.do == f"invoke setup --platform {OTHER.oci}"


def test_tags_are_spelled_as_engines_store_them():
    assert full_tag("sparkforge:x") == "localhost/sparkforge:x"
    assert full_tag("a/b") == "localhost/a/b:latest"
    assert full_tag("localhost/a:1") == "localhost/a:1"
    assert full_tag("nvcr.io/nvidia/cuda:13") == "nvcr.io/nvidia/cuda:13"
    assert full_tag("localhost:5000/a") == "localhost:5000/a:latest"


@dataclasses.dataclass
class Rooted:
    folder: object

    def root(self):
        return self.folder


def test_disk_is_counted_and_too_little_of_it_refused_before_work(tmp_path):
    sizes = disk.PackedSizes(missing=10, runtime=100, upstream=10)

    def need(sizes=sizes, engine="docker", *, cross=False, base_here=False):
        return disk.need(sizes, engine=engine, cross=cross, base_here=base_here)

    docker = need()
    assert docker.engine - need(engine="buildah").engine == 110
    assert need(cross=True).engine > docker.engine
    assert need(base_here=True).store == 10
    assert need(dataclasses.replace(sizes, environment=100)).store == docker.store + 210
    disk.check(docker, tmp_path, Rooted(tmp_path / "not" / "there"))
    with pytest.raises(EnvironmentLacks, match="too little disk") as told:
        disk.check(disk.DiskNeed(0, 10**18, 0), tmp_path, Rooted(tmp_path))
    assert str(tmp_path) in told.value.why


def test_sizes_are_of_the_store_and_for_what_it_lacks_of_the_index(store, monkeypatch):
    here, lost = (fetch.Wanted(File(f"{name}.whl", name * 64), name, "a lock") for name in "ab")
    path = fetch.path_of(store, here.file)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"12345")
    monkeypatch.setattr(fetch, "held", lambda _, one: path if one is here else None)
    monkeypatch.setattr(fetch, "locate", lambda wanted: {one.file: "url" for one in wanted})
    monkeypatch.setattr(fetch, "sizes", lambda links: dict.fromkeys(links, 70))
    sizes = disk.PackedSizes.of(store, [here, lost], [here], [lost], [])
    assert sizes == disk.PackedSizes(missing=70, runtime=75, upstream=5, environment=70)
