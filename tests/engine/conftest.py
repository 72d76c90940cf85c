"""An image of one static program, built by a real engine."""

import subprocess
import uuid
from pathlib import Path

import pytest

from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.engine.choose import candidates, proven
from sparkforge.engine.engine import Launch, Recipe

HERE = Path(__file__).parent


@pytest.fixture(scope="session", params=["docker", "buildah"])
def engine(request):
    store = Store.open()
    for one in candidates(request.param):
        if proven(store, one).able:
            return one
    pytest.skip(f"no working {request.param} here: invoke setup")


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Builds images of the program with labels of their own, and removes them."""
    folder = tmp_path_factory.mktemp("do")
    subprocess.run(["g++", "-static", "-O1", "-x", "c", HERE / "do.c", "-o", folder / "do"], check=True)
    (folder / "links").mkdir()
    (folder / "links" / "do").symlink_to("/also/do")
    (folder / "Dockerfile").write_text(
        "FROM scratch AS it\nCOPY do /do\nCOPY do /also/do\nCOPY links /links\nCOPY turn /turn\n"
        'ENTRYPOINT ["/do"]\nCMD ["once"]\n'
    )
    built = []

    def make(engine, labels=None):
        (folder / "turn").write_text(uuid.uuid4().hex)  # buildah takes a whole image from its cache, labels and all
        tag = f"localhost/sparkforge-test/do-{uuid.uuid4().hex[:8]}:1"
        recipe = Recipe(folder, folder / "Dockerfile", "it", tag, Platform.host(), labels=labels or {})
        engine.build(recipe)
        built.append((engine, tag))
        return tag

    yield make
    for engine, tag in built:
        engine.untag(tag)


@pytest.fixture(scope="session")
def image(engine, made):
    return made(engine)


@pytest.fixture
def started(engine, image):
    """Starts containers of it and removes them."""
    running = []

    def start(*words, **more):
        running.append(engine.run(Launch(image, words, **more)))
        return running[-1]

    yield start
    for one in running:
        one.remove()
