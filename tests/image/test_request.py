from __future__ import annotations

import pytest

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import ROOT
from sparkforge.core.platforms import ARM64
from sparkforge.git.repository import Git
from sparkforge.image import request, revision
from sparkforge.inputs.recipes import load_stack


def test_the_usual_words():
    asked = request.parse(load_stack(), arch="12.1f", platform="linux/arm64")
    assert (asked.target, asked.platform, asked.tag) == (
        "serve",
        ARM64,
        "localhost/sparkforge:vllm-0.21-serve-12.1f-arm64",
    )


def test_an_amd64_image_for_a_spark_is_named_test_only():
    assert request.parse(load_stack(), platform="linux/amd64").tag.endswith("-amd64-test-only")


@pytest.mark.parametrize(
    "words", [{"target": "gpu"}, {"base": "alpine"}, {"arch": "121"}, {"platform": "linux/riscv64"}, {"arch": ""}]
)
def test_a_word_that_we_do_not_know_is_bad_input(words):
    with pytest.raises(BadInput):
        request.parse(load_stack(), **words)


def test_an_arch_that_was_not_verified_warns_and_is_refused_when_locked(capsys):
    request.parse(load_stack(), arch="12.1")
    said = capsys.readouterr().err
    assert "was not verified for 12.1" in said
    assert "no block-scaled MMA" in said
    with pytest.raises(CheckFailed, match="not verified"):
        request.parse(load_stack(), arch="12.0f", locked=True)


def test_a_revision_tells_a_changed_checkout(tmp_path):
    git = Git(tmp_path / ".git", tmp_path)
    assert revision.of(tmp_path).commit == ""
    Git(tmp_path / ".git").run("init", "--quiet", tmp_path)
    (tmp_path / "a").write_text("1")
    git.run("add", "a")
    git.run("commit", "--quiet", "--message=one")
    found = revision.of(tmp_path)
    assert len(found.commit) == 40
    assert found.date == "1970-01-01T00:00:00Z"
    (tmp_path / "a").write_text("2")
    assert revision.of(tmp_path).commit == f"{found.commit}-dirty"


def test_this_checkout_has_a_revision():
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    assert revision.of(ROOT).date > "2026"
