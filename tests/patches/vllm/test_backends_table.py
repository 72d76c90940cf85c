"""The table of what the patched package chooses, as `images/checks/backends.py` prints it for five devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "images" / "checks" / "backends.py"
CUTLASS, MARLIN = "FLASHINFER_CUTLASS_MXFP4_MXFP8", "MARLIN"


@pytest.fixture(scope="module")
def table():
    """A function that returns the chosen entry for flags, on a device; each device is asked once."""
    known: dict[str, list[dict]] = {}

    def ask(device: str, what: str, **flags: str):
        if device not in known:
            words = [sys.executable, str(SCRIPT), "--capability", device, "--json"]
            done = subprocess.run(words, capture_output=True, text=True, check=False, env=dict(os.environ))
            assert done.returncode == 0, done.stderr[-2000:]
            known[device] = json.loads(done.stdout)["rows"]
        found = [row for row in known[device] if row["what"] == what and set(flags.items()) <= set(_named(row).items())]
        assert found, f"{what} {flags} is not in the table"
        plain = [row for row in found if all(v == "auto" for k, v in _named(row).items() if k not in flags)]
        return (plain or found)[0]["chosen"]

    return ask


def _named(row: dict) -> dict[str, str]:
    """Flags by names that are words of Python."""
    return {name.removeprefix("VLLM_").strip("-").replace("-", "_").lower(): v for name, v in row["flags"].items()}


@pytest.mark.parametrize(
    ("device", "auto", "gemm", "marlin", "bf16"),
    [
        ("8.0", MARLIN, "refused", MARLIN, MARLIN),
        ("9.0", "TRITON", "FLASHINFER_CUTLASS_MXFP4_BF16", MARLIN, "TRITON"),
        ("10.0", "FLASHINFER_TRTLLM_MXFP4_BF16", CUTLASS, MARLIN, "FLASHINFER_TRTLLM_MXFP4_BF16"),
        ("12.0", CUTLASS, CUTLASS, MARLIN, MARLIN),
        ("12.1", CUTLASS, CUTLASS, MARLIN, MARLIN),
    ],
)
def test_the_experts(table, device, auto, gemm, marlin, bf16):
    assert table(device, "moe", mxfp4_moe_kernel="auto", mxfp4_activation="auto", moe_backend="auto") == auto
    assert table(device, "moe", mxfp4_moe_kernel="gemm") == gemm
    assert table(device, "moe", mxfp4_moe_kernel="marlin") == marlin
    assert table(device, "moe", mxfp4_activation="bf16") == bf16
    assert table(device, "moe", moe_backend="marlin") == MARLIN


@pytest.mark.parametrize("device", ["12.0", "12.1"])
def test_attention_on_12(table, device):
    assert table(device, "attention", attention_backend="auto", kv_cache_dtype="auto") == "FLASHINFER"
    assert table(device, "attention", attention_backend="auto", kv_cache_dtype="fp8") == "FLASHINFER"
    assert table(device, "attention", attention_backend="TRITON_ATTN", kv_cache_dtype="fp8") == "TRITON_ATTN"


def test_attention_elsewhere_refuses_sinks_in_flashinfer(table):
    assert table("9.0", "attention", attention_backend="FLASHINFER", attention_sinks="auto") == "refused"
    assert table("9.0", "attention", attention_backend="FLASHINFER", attention_sinks="false") == "FLASHINFER"


@pytest.mark.parametrize("device", ["8.0", "9.0", "12.1"])
def test_dense_layers(table, device):
    assert set(table(device, "dense", mxfp4_layers="moe").values()) == {"BF16"}
    assert set(table(device, "dense", mxfp4_layers="all").values()) == {"Marlin"}
    assert table(device, "dense", mxfp4_layers="moe,router") == "refused"


def test_tuning_and_graphs(table):
    assert table("12.1", "start", mxfp4_moe_kernel="auto") == {"tuned": True, "captured": "none"}
    assert table("12.1", "start", mxfp4_moe_kernel="marlin") == {"tuned": False, "captured": "up to 1024"}
    assert table("9.0", "start", mxfp4_moe_kernel="auto") == {"tuned": False, "captured": "up to 1024"}
