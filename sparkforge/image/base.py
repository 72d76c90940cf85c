"""The base of an image: `ngc` from NVIDIA's registry, `bootstrap` made here, or `auto`, which says what it took.

    ensure(engine, store, stack, flavor, platform, locked=False) -> BaseImage

Both end as one local image, `localhost/sparkforge/base:<key>`, with the packages of `images/base/packages.txt`.
The key hashes the request; the digest is that of the result. A registry's image without a known digest is
`unpinned`: it is pulled with a warning, its digest is recorded, and `locked` refuses it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sparkforge.core.console import say, timed, warn
from sparkforge.core.errors import BadInput, CheckFailed, EnvironmentLacks
from sparkforge.core.hashing import key_of
from sparkforge.core.paths import ROOT, shown
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store, write_file
from sparkforge.engine import archive
from sparkforge.engine.engine import Engine, Recipe
from sparkforge.image import bootstrap
from sparkforge.inputs import recipes
from sparkforge.inputs.recipes import UNPINNED, Stack

Flavor = Literal["auto", "ngc", "bootstrap"]
KIND = "bases"
TAG = "localhost/sparkforge/base"
_SECONDS = 3.0  # a slower registry is not worth building from
_FORMAT = 2


@dataclass(frozen=True)
class BaseImage:
    """A base that the engine holds.

    Attributes:
        flavor: ngc or bootstrap.
        tag: name in the engine, with the key of what was asked for.
        key: that key.
        name: for the label base.name: the registry's reference, or what it was made from.
        digest: `sha256:...`: the registry's of that reference, or the image id of what was made here.
        python: MAJOR.MINOR of its Python.
        glibc: its C library as uv spells it.
        why: why it is this flavor.
    """

    flavor: Literal["ngc", "bootstrap"]
    tag: str
    key: str
    name: str
    digest: str
    python: str
    glibc: str
    why: str = ""


def ensure(
    engine: Engine, store: Store, stack: Stack, flavor: Flavor, platform: Platform, *, locked: bool = False
) -> BaseImage:
    """The base for a platform, made or pulled if missing.

    Args:
        engine: it is loaded into this one.
        store: made bases are kept here as image archives.
        stack: its `bases` say what they are.
        flavor: ngc, bootstrap or auto.
        platform: of the base.
        locked: refuse a base whose digest the stack does not give.

    Raises:
        BadInput: the stack has no such flavor, or `locked` and it is unpinned.
        CheckFailed: what came is not what the stack pins.
        EnvironmentLacks: the registry, mmdebstrap or emulation is missing.
    """
    taken, why = choose(store, stack, flavor, platform)
    pin = stack.bases[taken]
    pinned(stack, taken, locked=locked)
    make = _bootstrap if taken == "bootstrap" else _registry
    found = make(engine, store, pin, platform)
    if pin.digest not in (UNPINNED, found.digest):
        raise CheckFailed(
            f"the {taken} base is not the pinned one",
            why=f"{found.name}: {found.digest}, wanted {pin.digest} ({shown(stack.path)}: bases.{taken}.digest)",
            do="if the change is meant, pin what came; a bootstrap base changes with its mirror",
        )
    return replace(found, why=why)


def pinned(stack: Stack, flavor: Literal["ngc", "bootstrap"], *, locked: bool) -> None:
    """Refuse a base whose digest the stack does not give, where `locked` asks for that.

    Raises:
        BadInput: names the line to write it into.
    """
    if locked and stack.bases[flavor].digest == UNPINNED:
        raise BadInput(
            f"the {flavor} base is not pinned, and --locked allows no such base",
            why=f"{shown(stack.path)}: bases.{flavor}.digest: unpinned",
            do="write the digest that a build without --locked recorded, or build without --locked",
        )


def choose(store: Store, stack: Stack, flavor: Flavor, platform: Platform) -> tuple[Literal["ngc", "bootstrap"], str]:
    """The flavor to take and why; `auto` keeps its first answer for a platform, so that builds stay the same.

    Raises:
        BadInput: the stack has no such flavor.
    """
    if flavor != "auto":
        if flavor not in stack.bases:
            raise BadInput(f"the stack {stack.name} has no base {flavor!r}", why=f"bases: {', '.join(stack.bases)}")
        return flavor, "asked for"
    if "ngc" not in stack.bases:
        return "bootstrap", "the stack has no other"
    image = stack.bases["ngc"].image or ""
    kept = store.root / KIND / f"auto-{key_of(stack.name, image, platform.oci)[:12]}.json"
    if kept.is_file():
        said = json.loads(kept.read_bytes())
        return said["flavor"], f"{said['why']} when it was first chosen (--base ngc or --base bootstrap to change)"
    refused = unreachable(image)
    taken: Literal["ngc", "bootstrap"] = "bootstrap" if refused else "ngc"
    why = f"the registry of {image} is not reachable: {refused}" if refused else "its registry is reachable"
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_file(kept, json.dumps({"flavor": taken, "why": why}).encode())
    return taken, why


def unreachable(image: str, *, seconds: float = _SECONDS) -> str:
    """Why the registry of an image does not answer; empty when it answers, with any status."""
    import requests  # noqa: PLC0415  a build that chose before does not pay for it

    host = image.partition("/")[0]
    try:
        requests.get(f"https://{host}/v2/", timeout=seconds, stream=True).close()
    except requests.Timeout:
        return f"{host} did not answer within {seconds:.0f} s"
    except requests.RequestException as refused:
        return f"{host}: {type(refused).__name__}"
    return ""


def key_for(flavor: str, pin: recipes.Base, platform: Platform) -> str:
    """Key of a base: everything that was requested."""
    recipe = [bootstrap.SUITE, bootstrap.EPOCH] if flavor == "bootstrap" else [pin.image, pin.digest]
    return key_of(_FORMAT, flavor, recipe, bootstrap.packages(), platform.oci)[:12]


def _bootstrap(engine: Engine, store: Store, pin: recipes.Base, platform: Platform) -> BaseImage:
    key = key_for("bootstrap", pin, platform)
    tag = f"{TAG}:{key}"
    if not store.has(KIND, key):
        with store.writing(KIND, key) as folder, timed(f"Debian {bootstrap.SUITE} for {platform.oci} with mmdebstrap"):
            root = folder / "root.tar"
            bootstrap.make(root, folder / "packages.txt", platform)
            made_by = f"mmdebstrap {bootstrap.SUITE} {' '.join(bootstrap.packages())}"
            labels = {"dev.sparkforge.base": "bootstrap", "dev.sparkforge.base.key": key}
            image = archive.write(
                root, folder / "image.tar", tag=tag, platform=platform, made_by=made_by, labels=labels
            )
            root.unlink()
            (folder / "base.json").write_text(json.dumps({"image": image}) + "\n")
    folder = store.path(KIND, key)
    image = str(json.loads((folder / "base.json").read_bytes())["image"])
    if not engine.has(tag) or engine.image_id(tag) != image:
        with timed(f"base {key} into {engine.name}"):
            engine.load(folder / "image.tar")
    return BaseImage("bootstrap", tag, key, f"debian-{bootstrap.SUITE}-mmdebstrap", image, pin.python, pin.glibc)


def _registry(engine: Engine, store: Store, pin: recipes.Base, platform: Platform) -> BaseImage:
    if pin.image is None:
        raise BadInput("the ngc base names no image", do="bases.ngc.image: REGISTRY/NAME:TAG")
    key = key_for("ngc", pin, platform)
    tag = f"{TAG}:{key}"
    kept = store.path(KIND, key)
    recorded = json.loads((kept / "base.json").read_bytes())["digest"] if kept.is_dir() else UNPINNED
    if recorded == UNPINNED or not engine.has(tag):
        bootstrap.check_emulation(platform)
        # What was pulled once is pulled again by its digest: a tag may have moved since.
        wanted = recorded if pin.digest == UNPINNED else pin.digest
        reference = pin.image if wanted == UNPINNED else f"{pin.image.rpartition(':')[0]}@{wanted}"
        with timed(f"{reference} for {platform.oci}"):
            try:
                digest = engine.pull(reference, platform)
            except CheckFailed as refused:
                raise EnvironmentLacks(
                    f"{reference} could not be pulled", why=refused.why, do="--base bootstrap needs no registry"
                ) from refused
        if wanted == UNPINNED:
            warn(f"{pin.image} is not pinned; what came now is {digest}: write it as bases.ngc.digest to keep it")
        else:
            digest = wanted  # pulled by it, so it is that; engines differ in naming the index or the platform's part
        _with_packages(engine, store, reference, tag, platform)
        with store.writing(KIND, key) as folder:
            (folder / "base.json").write_text(json.dumps({"image": reference, "digest": digest}) + "\n")
        recorded = digest
    return BaseImage("ngc", tag, key, pin.image, recorded, pin.python, pin.glibc)


def _with_packages(engine: Engine, store: Store, reference: str, tag: str, platform: Platform) -> None:
    """Build the Dockerfile's stage `base`: the registry's image with our packages."""
    empty = store.root / "contexts" / "base"
    if empty.exists():
        shutil.rmtree(empty)
    empty.mkdir(parents=True)
    args = {"PLATFORM": platform.oci, "REGISTRY_IMAGE": reference, "PACKAGES": " ".join(bootstrap.packages())}
    labels = {"dev.sparkforge.base": "ngc"}
    say(f"  installing {args['PACKAGES']}")
    engine.build(Recipe(empty, Path(ROOT / "Dockerfile"), "base", tag, platform, args, labels, network=True))
