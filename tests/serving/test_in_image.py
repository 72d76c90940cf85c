"""Profiles as an image's entrypoint takes them: its own files, and a `vllm` that tells its words and variables."""

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from sparkforge.core.hashing import key_of
from sparkforge.core.paths import IMAGES
from sparkforge.image.image_step import ImageParts
from sparkforge.image.module_step import ImageModules
from sparkforge.image.part_steps import Upstreams
from sparkforge.serving import carried as of_image
from sparkforge.serving.words import command

TOLD = ("VLLM_MXFP4_MOE_KERNEL", "VLLM_MXFP4_ACTIVATION", "VLLM_FLASHINFER_XQA_DECODE")
SHORT = "gpt-oss-120b-short"


@pytest.fixture
def image(tmp_path):
    """Runs the entrypoint as an image for a target has it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    vllm = programs / "vllm"
    vllm.write_text(
        "#!/usr/bin/python3\nimport json, os, sys\n"
        f"print(json.dumps([sys.argv[1:], {{name: os.environ.get(name) for name in {TOLD}}}]))\n"
    )
    vllm.chmod(0o755)

    def run(*words, target="serve", profiles=None, **env):
        folder = tmp_path / target
        if not folder.exists():
            shutil.copytree(IMAGES / "run", folder)
            (folder / "profiles.json").write_text(profiles or of_image.text("vllm-0.21", target))
        own = {"PATH": f"{programs}:/usr/bin:/bin", "SPARKFORGE_HEALTH": str(tmp_path / "health")}
        own |= {"SPARKFORGE_SHINIT": str(tmp_path / "shinit"), "SPARKFORGE_QUIET": "1"}
        return subprocess.run(
            [folder / "entrypoint", *words], env=own | env, capture_output=True, text=True, check=False, cwd=tmp_path
        )

    run.folder = tmp_path
    return run


def told(done):
    assert done.returncode == 0, done.stderr
    words, variables = json.loads(done.stdout)
    return words, {name: value for name, value in variables.items() if value is not None}


def grouped(words):
    """Words of `vllm serve` as a set of flags with their values."""
    groups = []
    for word in words[2:]:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(word)
    return {tuple(group) for group in groups}


@pytest.mark.parametrize(
    ("words", "name", "parts"),
    [
        ((), SHORT, "soaked"),
        (("--profile", "gpt-oss-120b-long"), "gpt-oss-120b-long", "soaked"),
        (("--profile=gpt-oss-120b-ngram",), "gpt-oss-120b-ngram", "soaked"),
        (("--parts", "all"), SHORT, "all"),
        (("--parts=fp8-kv,xqa-decode",), SHORT, "fp8-kv,xqa-decode"),
        (("--parts", "eagle3", "--profile", "gpt-oss-120b-eagle3"), "gpt-oss-120b-eagle3", "eagle3"),
    ],
)
def test_the_entrypoint_makes_of_a_profile_what_the_renderer_makes_of_it(image, known, words, name, parts):
    meant = command(known, known.find(name), parts)
    done = image(*words)
    said, variables = told(done)
    assert said[:2] == ["serve", meant.profile.model]
    assert grouped(said) == set(meant.groups)
    assert variables == {key: value for key, value in meant.env.items() if key in TOLD}
    assert f"profile {name}, parts {', '.join(meant.on)}" in done.stderr
    assert (f"off: {', '.join(meant.off)}" in done.stderr) is bool(meant.off)


def test_flags_alone_go_over_the_default_profiles(image, known):
    done = image("--max-num-seqs", "2", "--no_enable_auto_tool_choice", "--attention-config.backend", "TRITON_ATTN")
    words, _ = told(done)
    assert words[:2] == ["serve", "openai/gpt-oss-120b"]
    for flag in ("--enable-auto-tool-choice", "--attention-backend"):
        assert flag not in words
    assert words.count("--max-num-seqs") == 1
    assert words[-5:] == [
        *("--max-num-seqs", "2", "--no_enable_auto_tool_choice", "--attention-config.backend", "TRITON_ATTN")
    ]
    assert (
        "yours in place of the profile's: --max-num-seqs, --enable-auto-tool-choice, --attention-backend" in done.stderr
    )


def test_the_users_words_stand_behind_so_that_any_spelling_wins(image):
    words, _ = told(image("-asc", "1"))
    assert words[-2:] == ["-asc", "1"]


def test_a_model_is_served_as_it_was_and_with_a_profile_if_one_is_named(image):
    words, variables = told(image("openai/gpt-oss-120b", "--max-model-len", "4096"))
    assert words == ["serve", "openai/gpt-oss-120b", "--max-model-len", "4096"]
    assert variables == {"VLLM_MXFP4_MOE_KERNEL": "marlin"}
    words, _ = told(image("mine/gpt-oss-120b", "--profile", SHORT, "--max-model-len", "4096"))
    assert words[:2] == ["serve", "mine/gpt-oss-120b"]
    assert words[-2:] == ["--max-model-len", "4096"]
    assert "FLASHINFER" in words


@pytest.mark.parametrize("words", [("--model", "x"), ("--help=all",), ("--config", "x.yaml"), ("-v",)])
def test_flags_that_stand_by_themselves_get_no_profile(image, words):
    assert told(image(*words))[0] == ["serve", *words]


@pytest.mark.parametrize(
    ("words", "env", "variables"),
    [
        ((), {"VLLM_MXFP4_MOE_KERNEL": "auto"}, {"VLLM_MXFP4_MOE_KERNEL": "auto"}),
        (("--parts", "all"), {"VLLM_MXFP4_MOE_KERNEL": "marlin"}, {"VLLM_MXFP4_MOE_KERNEL": "marlin"}),
        (("--parts", "all"), {"VLLM_MXFP4_ACTIVATION": "mxfp8"}, {"VLLM_MXFP4_ACTIVATION": "mxfp8"}),
        (("--moe-backend", "triton"), {}, {}),
        (("--moe_backend=triton",), {}, {}),
        (("a/model", "--moe-backend", "flashinfer_cutlass_afp8"), {}, {}),
        (("vllm", "serve", "a/model", "--moe-backend", "marlin"), {}, {}),
        (("vllm", "serve", "a/model"), {}, {"VLLM_MXFP4_MOE_KERNEL": "marlin"}),
        ((), {"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS": "1"}, {}),
    ],
)
def test_a_kernel_that_the_user_names_in_any_way_is_the_only_one_that_is_named(image, words, env, variables):
    found = told(image(*words, **env))[1]
    assert {name: value for name, value in found.items() if name != "VLLM_FLASHINFER_XQA_DECODE"} == variables


def test_a_part_whose_modules_were_left_out_is_refused_with_the_build_that_adds_them(image):
    image("--help")  # makes the folder
    manifest = {"parts_left_out": {"cutlass-moe": ["fused_moe_120"], "xqa-decode": ["xqa_a", "xqa_b"]}}
    (image.folder / "serve" / "manifest.json").write_text(json.dumps(manifest))
    told(image())
    told(image("--parts", "fp8-kv"))
    for parts in ("cutlass-moe", "all"):
        done = image("--parts", parts)
        assert (done.returncode, done.stdout) == (2, "")
        assert "cannot turn on" in done.stderr
        assert "without fused_moe_120" in done.stderr or "without xqa_a, xqa_b" in done.stderr
        assert "invoke build --aot all" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--profile", "fast"), f"profiles: gpt-oss-120b-eagle3, gpt-oss-120b-long, gpt-oss-120b-ngram, {SHORT}"),
        (("--profile",), "--profile without a value"),
        (("--parts", "everything"), "parts: soaked, all, marlin-moe"),
        (("--profile", "gpt-oss-120b-two-sparks"), "invoke serve --profile gpt-oss-120b-two-sparks --print"),
        (("--profile", SHORT, "--model", "x"), "--model says by itself what to serve"),
        (("--profile", "tiny"), "docker run -v FOLDER:/models/tiny:ro"),
    ],
)
def test_what_means_nothing_is_refused_with_the_choices(image, words, said):
    done = image(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_cpu_image_serves_the_tiny_model_by_default(image):
    model = image.folder / "tiny-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    said = of_image.text("vllm-0.21", "cpu").replace('"/models/tiny"', json.dumps(str(model)))
    done = image(target="cpu", profiles=said)
    words, variables = told(done)
    assert words[:4] == ["serve", str(model), "--served-model-name", "tiny"]
    assert variables == {}
    assert image("--profile", SHORT, target="cpu").returncode == 2


def test_an_image_without_profiles_says_what_to_give(image):
    done = image(target="none", profiles="{")
    assert done.returncode == 2
    assert "usage: IMAGE" in done.stderr
    assert told(image("a/model", target="none"))[0] == ["serve", "a/model"]


def test_the_health_check_asks_the_port_of_the_words_that_won(image):
    image("--port", "9001")
    assert json.loads((image.folder / "health").read_text())["port"] == "9001"


def test_models_that_can_be_read_are_served_from_a_cache_that_cannot_be_written():
    """As another user where this one is root, whom nothing stops."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        cache, scripts = place / "hf", place / "run"
        shutil.copytree(IMAGES / "run", scripts)
        cache.mkdir()
        for folder in (place, cache, scripts):
            folder.chmod(0o555)

        def run():
            words = [scripts / "entrypoint", "sh", "-c", "echo $HF_HOME"]
            env = {"PATH": "/usr/bin:/bin", "HF_HOME": str(cache)}
            other = {"user": 65534, "group": 65534} if os.getuid() == 0 else {}
            return subprocess.run(words, env=env, capture_output=True, text=True, check=True, cwd="/", **other)

        empty = run()
        assert empty.stdout.strip() != str(cache)
        assert "lost at exit" in empty.stderr
        shutil.rmtree(Path(empty.stdout.strip()).parent)
        cache.chmod(0o755)
        (cache / "hub").mkdir()
        cache.chmod(0o555)
        kept = run()
        assert kept.stdout.strip() == str(cache)
        assert "its models are served, none can be added" in kept.stderr
        for folder in (place, cache, scripts):
            folder.chmod(0o755)


def test_a_change_of_a_profile_is_a_new_image():
    profiles = of_image.text("vllm-0.21", "cpu")
    parts = ImageParts(Upstreams({}, {}), None, None, None, ImageModules(None, "none"), profiles)
    before = key_of(parts.checkout)
    assert key_of(replace(parts, profiles=parts.profiles).checkout) == before
    assert key_of(replace(parts, profiles=parts.profiles.replace("1024", "2048")).checkout) != before
