"""Profiles are read strictly: every error names the file, the place and the choices."""

import shutil

import pytest
import yaml

from sparkforge.core.errors import BadInput
from sparkforge.serving.load import PROFILES, catalogue
from sparkforge.serving.words import command


@pytest.fixture
def folder(tmp_path):
    """A copy of the recipes, and a function that changes one of them."""
    made = tmp_path / "profiles"
    shutil.copytree(PROFILES, made)

    def change(file="gpt-oss-120b-short", /, **keys):
        path = made / f"{file}.yaml"
        said = yaml.safe_load(path.read_text())
        for key, value in keys.items():
            if value is None:
                del said[key]
            else:
                said[key] = value
        path.write_text(yaml.safe_dump(said))
        return made

    return change


def test_one_default_for_each_target(known):
    assert known.default("serve").name == "gpt-oss-120b-short"
    assert known.default("cpu").name == "tiny"


def test_every_way_to_serve_gpt_oss_is_there(known):
    for name in ("short", "long", "throughput", "ngram", "eagle3", "two-sparks"):
        assert known.find(f"gpt-oss-120b-{name}").model == "openai/gpt-oss-120b"
    assert known.find("gpt-oss-20b").model == "openai/gpt-oss-20b"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"modle": "x"}, "unknown field `modle`"),
        ({"model": None}, "required field `model`"),
        ({"model": 3}, "model: Expected `str`, got `int`"),
        ({"name": "other"}, "name: 'other' is not the file's name"),
        ({"stack": "vllm-9"}, "there is no 'vllm-9'; stacks: vllm-0.21"),
        ({"targets": ["gpu"]}, "targets[0]: Invalid enum value 'gpu'"),
        ({"default_of": ["serve", "cpu"]}, "default_of: cpu is not among its targets"),
        ({"default_of": []}, "default_of: serve is named by none"),
        ({"parts": ["marlin"]}, "parts[0]: there is no 'marlin'; parts: marlin-moe, dense-mxfp4"),
        ({"parts": ["marlin-moe", "marlin-moe"]}, "parts[1]: 'marlin-moe' is named twice"),
        ({"parts": ["marlin-moe", "flashinfer-attention", "n-gram", "fp8-kv"]}, "were never soaked together"),
        ({"flags": {"--max-model-len": 1}}, "flags"),
        ({"flags": {"port": 1}}, "flags.port: it is set by container.port"),
        ({"flags": {"no-enable-prefix-caching": True}}, "say `enable-prefix-caching: false`"),
        ({"flags": {"kv-cache-dtype": "fp8"}}, "kv-cache-dtype: part fp8-kv sets it too"),
        ({"flags": {"hf-overrides": {}}}, "flags.hf-overrides: it is empty"),
        ({"env": {"lower": "1"}}, "env"),
        ({"env": {"A": 1}}, "Expected `str`, got `int`"),
        ({"container": {"shm": "2g"}}, "container.shm: ipc of the host"),
        ({"container": {"shm": "lots", "ipc": "private"}}, "container.shm"),
        ({"container": {"port": 0}}, "container.port"),
        ({"flags": {"tensor-parallel-size": 2}}, "cluster: it goes with flags.tensor-parallel-size"),
    ],
)
def test_what_is_wrong_is_named(folder, keys, said):
    with pytest.raises(BadInput) as refused:
        catalogue(folder(**keys))
    assert said in str(refused.value)
    assert "profiles" in refused.value.what


def test_a_cluster_needs_the_hosts_network(folder):
    with pytest.raises(BadInput, match="say `host`"):
        catalogue(folder("gpt-oss-120b-two-sparks", container={"network": "bridge"}))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"summary": "x", "rows": [], "unproved": "y"}, "it sets neither"),
        ({"summary": "x", "rows": [], "flags": {"a": 1}}, "required field `unproved`"),
        ({"summary": "x", "rows": [], "flags": {"a": 1}, "unproved": ""}, "unproved"),
        (
            {"summary": "x", "rows": [], "flags": {"a": 1}, "unproved": "y", "held_back": "z"},
            "planted.held_back: a part without a soak",
        ),
        (
            {"summary": "x", "rows": [], "flags": {"a": 1}, "unproved": "y", "soak": {"result": "r", "checks": []}},
            "soak",
        ),
    ],
)
def test_a_part_says_what_it_sets_and_what_is_unproved(folder, part, said):
    with pytest.raises(BadInput) as refused:
        catalogue(folder("parts", planted=part))
    assert said in str(refused.value)


def test_an_unknown_profile_or_part_lists_the_choices(known):
    with pytest.raises(BadInput, match="no profile 'long'") as refused:
        known.find("long")
    assert "gpt-oss-120b-long" in refused.value.why
    with pytest.raises(BadInput, match="no part 'fp8'") as refused:
        command(known, known.find("gpt-oss-120b-short"), "fp8")
    assert "fp8-kv" in refused.value.why


def test_parts_are_on_by_their_soak_by_name_or_all(known):
    short = known.find("gpt-oss-120b-short")
    assert command(known, short).on == ("marlin-moe", "dense-mxfp4", "flashinfer-attention", "fp8-kv")
    assert command(known, short, "xqa-decode,soaked").on == (*command(known, short).on, "xqa-decode")
    assert command(known, short, "all").on == short.parts
    assert command(known, short, "all").off == ()


def test_a_part_that_was_soaked_can_be_off_all_the_same(folder):
    made = folder()
    path = made / "parts.yaml"
    parts = yaml.safe_load(path.read_text())
    parts["dense-mxfp4"]["held_back"] = "it rounds"
    path.write_text(yaml.safe_dump(parts, sort_keys=False))
    known = catalogue(made)
    short = known.find("gpt-oss-120b-short")
    assert command(known, short).off[0] == "dense-mxfp4"
    assert "dense-mxfp4" in command(known, short, "dense-mxfp4").on


def test_a_later_part_wins(known):
    short = known.find("gpt-oss-120b-short")
    assert command(known, short).env["VLLM_MXFP4_MOE_KERNEL"] == "marlin"
    assert command(known, short, "all").env["VLLM_MXFP4_MOE_KERNEL"] == "gemm"
    with_eagle = command(known, known.find("gpt-oss-120b-eagle3"), "eagle3")
    assert '"method":"eagle3"' in " ".join(with_eagle.words)


def test_speculation_by_eagle3_is_off_and_says_why(known):
    eagle = known.find("gpt-oss-120b-eagle3")
    assert "eagle3" in command(known, eagle).off
    assert "--speculative-config" not in command(known, eagle).words
    assert "1.66 tokens a step" in known.parts["eagle3"].unproved
