"""What a part claims to be proved by is there, and was right; what was soaked is what the default serves with."""

import importlib.util
import json
import sys

import pytest

from sparkforge.core.paths import ROOT
from sparkforge.serving.load import together
from sparkforge.serving.words import command

GPU = ROOT / "tools" / "gpu" / "vllm"


@pytest.fixture
def soaked_with(monkeypatch):
    """Arguments of vllm.LLM that the name of a soak means."""
    monkeypatch.syspath_prepend(str(GPU))
    spec = importlib.util.spec_from_file_location("plan_of_soaks", GPU / "plan.py")
    plan = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plan)
    yield plan.arguments
    sys.modules.pop("pool", None)


def missing(evidence, section=None):
    """Checks that a result does not have, or that were not right."""
    checks = json.loads((ROOT / evidence.result).read_text())["checks"]
    right = {one["name"] for one in checks if one["verdict"] == "right" and section in (None, one["section"])}
    return sorted(set(evidence.checks) - right)


def test_every_soak_that_a_part_names_was_a_soak_and_right(known):
    for name, part in known.parts.items():
        if part.soak is not None:
            assert missing(part.soak, "soak") == [], name


def test_every_other_result_is_there_and_right(known):
    for name, part in known.parts.items():
        for seen in part.shown:
            assert missing(seen) == [], name


def test_a_result_that_is_not_there_is_found_missing(known):
    soak = known.parts["marlin-moe"].soak
    planted = type(soak)(soak.result, ("S.X.F.default", "S.X.F.full"))
    assert missing(planted, "soak") == ["S.X.F.full"]
    shown = known.parts["fp8-kv"].shown[0]
    assert missing(shown, "soak") == sorted(one for one in shown.checks if not one.startswith("S."))


def test_soaks_are_as_long_as_they_are_said_to_be(known):
    """Each path by itself, and all replies equal."""
    for part in known.parts.values():
        if part.soak is None:
            continue
        for one in json.loads((ROOT / part.soak.result).read_text())["checks"]:
            if one["name"] in part.soak.checks:
                assert one["numbers"]["replays"] >= 200_000
                assert one["numbers"]["compositions"] >= 10_000
                assert one["numbers"]["equal"] == one["numbers"]["requests"] > 0
                assert one["numbers"]["mixed"] > 0
                assert one["numbers"]["failed"] is None


@pytest.mark.parametrize("name", ["gpt-oss-120b-short", "gpt-oss-120b-long", "gpt-oss-120b-ngram", "gpt-oss-20b"])
def test_a_soaked_path_ran_with_what_the_profile_serves_with(known, soaked_with, name):
    profile = known.find(name)
    said = command(known, profile)
    flags = {group[0]: group[1:] for group in said.groups}
    paths = {one.partition(": ")[2] for one in together(list(known.parts_of(profile).values()))}
    path = min(one for one in paths if one.endswith("default"))
    ran = soaked_with(path)
    assert ran["moe_backend"] == said.env["VLLM_MXFP4_MOE_KERNEL"]
    assert (ran["mxfp4_layers"],) == flags["--mxfp4-layers"]
    assert (ran["attention_config"]["backend"],) == flags["--attention-backend"]
    assert int(flags["--max-num-seqs"][0]) <= ran["max_num_seqs"]
    assert ran.get("kv_cache_dtype", "auto") == flags.get("--kv-cache-dtype", ("auto",))[0]
    asked = json.loads(flags.get("--speculative-config", ("{}",))[0])
    for key in ("method", "num_speculative_tokens"):
        assert asked.get(key) == ran.get("speculative_config", {}).get(key)
    assert not {"--enforce-eager", "--compilation-config", "--cudagraph-capture-sizes"} & flags.keys()


def test_the_default_captures_the_sizes_that_were_soaked(known, soaked_with):
    """vLLM captures 1, 2, 4 and multiples of 8 up to twice max-num-seqs."""
    flags = {group[0]: group[1:] for group in command(known, known.default("serve")).groups}
    largest = 2 * int(flags["--max-num-seqs"][0])
    captured = [size for size in (1, 2, 4, *range(8, 256, 8)) if size <= largest]
    paths = {one.partition(": ")[2] for one in together(list(known.parts_of(known.default("serve")).values()))}
    soaked = [soaked_with(path)["compilation_config"]["cudagraph_capture_sizes"] for path in paths]
    assert any(set(captured) <= set(sizes) for sizes in soaked)


def test_the_default_has_no_part_without_a_soak(known):
    for target in ("serve", "cpu"):
        on = command(known, known.default(target)).on
        assert all(known.parts[name].soak is not None for name in on)
