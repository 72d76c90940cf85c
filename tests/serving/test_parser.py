"""The patched parser takes every word of every profile: in a virtual environment, and in an image."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ASK = Path(__file__).with_name("ask_parser.py")
PLANTED = {
    "planted flag": "unrecognized arguments: --mxfp4-backend CUTLASS",
    "planted value": "gate is unknown; choose from moe, qkv, o, lm_head, all",
    "planted key": "cudagraph_mood",
    "planted tool parser": "invalid tool call parser: harmony",
    "planted variable": "VLLM_MXFP4_BACKEND is declared nowhere",
    "planted value of a variable": "Invalid value 'cutlass'",
}


def judge(asked, out):
    """Every profile is taken, everything planted is refused with its reason."""
    found = json.loads(out.strip().splitlines()[-1])
    assert found.keys() == asked.keys()
    assert {name: said for name, said in found.items() if said and not name.startswith("planted")} == {}
    for name, said in PLANTED.items():
        assert said in (found[name] or ""), name


@pytest.mark.serves
def test_the_patched_parser_takes_every_profile(asked, cpu_venv):
    done = subprocess.run(
        [cpu_venv / "bin" / "python", ASK],
        input=json.dumps(asked),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    judge(asked, done.stdout)
