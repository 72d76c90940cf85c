"""The check of the modules: with libraries that do nothing and have all that vLLM looks up, then with broken ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import IMAGES
from sparkforge.core.store import Store
from sparkforge.image import module_check
from sparkforge.inputs.recipes import load_stack
from sparkforge.inspect import module_facts as facts
from sparkforge.patches import trees

sys.path.insert(0, str(IMAGES / "checks"))  # they are scripts, which import what stands beside them

import aot
import aot_record


def folder_for(path: Path, tree: str, archs=("12.1f",), platform="linux/amd64", left_out=None) -> Path:
    path.mkdir(parents=True)
    said = {"format": 2, "key": "k", "platform": platform, "archs": list(archs), "tree": tree, "toolchain": ""}
    facts.write(path, facts.AotFacts(**said, versions={}, modules=[], units=[], reads={}, left_out=left_out or {}))
    return path


def library(path: Path, functions, methods=()) -> None:
    """A library in which TVM-FFI finds functions, and in which names stand."""
    path.parent.mkdir(parents=True, exist_ok=True)
    calls = "".join(f"int __tvm_ffi_{name}(void*s,void*a,int n,void*r){{return 0;}}\n" for name in functions)
    names = "".join(f'__attribute__((used)) const char of_{name}[] = "\\0{name}";\n' for name in methods)
    source = path.with_suffix(".c")
    source.write_text(calls + names)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, source], check=True)


@pytest.mark.slow
@pytest.mark.online
def test_what_vllm_asks_for_is_found_loads_and_has_its_functions_or_is_named(tmp_path):
    store, stack = Store.open(), load_stack()
    tree = trees.of(store, stack, "flashinfer").id
    empty = module_check.in_environment(store, stack, folder_for(tmp_path / "empty", tree))
    asked = {module.name: module for module in empty.modules}
    assert {"fused_moe_120", "mxfp8_quantization_sm100", "fp4_quantization_120f", "trtllm_utils", "sampling"} < set(
        asked
    )
    assert sum(name.startswith("batch_prefill_with_attention_sink") for name in asked) == 4
    assert sum(name.startswith("xqa_") for name in asked) == 4
    parts = {"fused_moe_120": ["cutlass-moe"], "xqa": ["xqa-decode"], "batch": ["eagle3"]}
    needed = module_check.in_environment(store, stack, folder_for(tmp_path / "needed", tree, left_out=parts))
    assert needed.subject.parts_out == ["cutlass-moe", "eagle3", "xqa-decode"]
    assert {module.name for module in needed.modules} == {
        name for name in asked if name.startswith(("batch_prefill_with_attention_sink", "sampling"))
    }
    assert not any(route.failed for route in empty.routes)
    assert len(empty.problems) == len(asked)
    for name in asked:
        assert any(f"module {name}: " in line and "is not there" in line for line in empty.problems)
    with pytest.raises(CheckFailed, match="would need a compiler"):
        empty.demand()

    whole = folder_for(tmp_path / "whole", tree)
    for name, module in asked.items():
        library(whole / name / f"{name}.so", module.functions, module.methods)
    found = module_check.in_environment(store, stack, whole)
    assert found.problems == []
    assert all(str(whole.name) not in module.file and f"/data/aot/{tree}/" in module.file for module in found.modules)
    found.demand()

    moe, short, junk = "fused_moe_120", "sampling", "fp4_quantization_120f"
    library(whole / moe / f"{moe}.so", asked[moe].functions, set(asked[moe].methods) - {"run_moe"})
    library(whole / short / f"{short}.so", set(asked[short].functions) - {"top_k_mask_logits"})
    (whole / junk / f"{junk}.so").write_bytes(b"\x7fELF junk")
    broken = module_check.in_environment(store, stack, whole, options=("--without", "trtllm_utils"))
    named = sorted(line.partition(":")[0] for line in broken.problems)
    assert named == [f"module {name}" for name in sorted([moe, short, junk, "trtllm_utils"])]
    assert f"module {moe}: it has no run_moe" in broken.problems
    assert f"module {short}: it has no top_k_mask_logits" in broken.problems


@pytest.mark.online
def test_modules_of_other_sources_are_refused(tmp_path):
    store, stack = Store.open(), load_stack()
    other = folder_for(tmp_path / "other", "0" * 40)
    with pytest.raises(CheckFailed, match="other sources"):
        module_check.in_environment(store, stack, other)


class Spec:
    """One of FlashInfer's, as far as the recorder asks."""

    def __init__(self, name, path, *, ahead=True, there=True):
        self.name, self.aot_path, self.is_aot, self.there = name, path / name / f"{name}.so", ahead, there
        if there:
            self.aot_path.parent.mkdir(parents=True)
            self.aot_path.write_bytes(b"\0Class::run\0walked\0sleepwalk\0")

    def get_library_path(self):
        return self.aot_path if self.is_aot else Path("/cache/it.so")


class Library:
    plan = object()


@pytest.fixture
def recorder():
    made = aot_record.Recorder()
    made.begin("a route")
    return made


def test_what_is_looked_up_is_asked_of_the_library_and_never_run(recorder, tmp_path):
    functions = recorder.asked(Spec("m", tmp_path), lambda _: Library())
    assert functions.plan(1, 2, 3) == [0] * 16
    assert functions.lost() is None
    made = functions.init("x")
    assert made.run() is None
    assert made.walk() is None
    module = recorder.modules["m"]
    assert module.functions == {"plan": True, "lost": False, "init": False}
    assert module.methods == {"run": True, "walk": False}
    assert module.missing() == ["lost", "init", "walk"]
    assert module.calls["plan"] == 1
    assert recorder.called == {"plan", "lost", "init", "run", "walk"}
    assert not module.problem


def test_a_module_that_is_used_again_belongs_to_that_route_too(recorder, tmp_path):
    functions = recorder.asked(Spec("m", tmp_path), lambda _: Library())
    recorder.begin("another")
    assert recorder.modules["m"].routes == ["a route"]
    functions.plan()
    assert recorder.modules["m"].routes == ["a route", "another"]
    assert recorder.called == {"plan"}


def test_a_module_from_elsewhere_or_from_nowhere_is_a_problem(recorder, tmp_path):
    def refuse(_):
        raise RuntimeError("JIT compilation is disabled\nmore")

    recorder.asked(Spec("compiled", tmp_path, ahead=False), lambda _: Library())
    recorder.asked(Spec("gone", tmp_path, there=False), refuse)
    recorder.asked(Spec("broken", tmp_path), refuse)
    problems = {name: module.problem for name, module in recorder.modules.items()}
    assert problems["compiled"] == f"it was not taken from {tmp_path}"
    assert problems["gone"] == f"{tmp_path / 'gone' / 'gone.so'} is not there (RuntimeError)"
    assert problems["broken"] == "JIT compilation is disabled (RuntimeError)"


def test_every_kind_of_problem_is_a_line():
    module = {"name": "m", "problem": "", "missing": [], "routes": ["r"]}
    fine = {"compiler": "", "modules": [module], "routes": [{"route": "r", "failed": "", "asked": ["m"]}]}
    assert aot.problems(fine) == []
    wrong = {
        "compiler": "/usr/bin/nvcc",
        "modules": [module | {"problem": "is not there"}, module | {"name": "n", "missing": ["plan"]}],
        "routes": [{"route": "r", "failed": "it never came to run_moe", "asked": []}],
    }
    assert aot.problems(wrong) == [
        "a compiler can be reached: /usr/bin/nvcc",
        "module m: is not there (asked for by: r)",
        "module n: it has no plan",
        "route r: it never came to run_moe",
    ]


def test_no_compiler_is_left(tmp_path, monkeypatch):
    for name in ("CUDA_HOME", "CUDA_PATH", "FLASHINFER_NVCC", "CXX"):
        monkeypatch.setenv(name, "/usr/local/cuda")
    for name in ("PATH", "FLASHINFER_DISABLE_JIT", "FLASHINFER_WORKSPACE_BASE", "VLLM_CACHE_ROOT", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "before")
    for name in ("VLLM_HAS_FLASHINFER_CUBIN", "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "before")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "before")
    aot.scrub(tmp_path)
    assert not {"FLASHINFER_NVCC", "CXX"} & set(aot.os.environ)
    assert list(Path(aot.os.environ["PATH"]).iterdir()) == []
    assert not Path(aot.os.environ["CUDA_HOME"], "bin", "nvcc").exists()
    assert aot.os.environ["CUDA_HOME"] == aot.os.environ["CUDA_PATH"] == str(tmp_path)
    assert aot.os.environ["FLASHINFER_DISABLE_JIT"] == "1"


LABELS = {
    "dev.sparkforge.tree.vllm": "v" * 40,
    "dev.sparkforge.tree.flashinfer": "f" * 40,
    "dev.sparkforge.aot": "k",
    "dev.sparkforge.platform": "linux/amd64",
    "dev.sparkforge.archs": "12.1f",
}


class Engine:
    """An engine whose containers write what the script would."""

    def __init__(self, said: bytes | None, log: str = "Traceback: no torch", **labels: str):
        self.said, self.log, self.launches, self.removed = said, log, [], 0
        self.said_labels = LABELS | {f"dev.sparkforge.{name}".replace("_", "-"): text for name, text in labels.items()}

    def labels(self, _):
        return self.said_labels

    def run(self, launch):
        self.launches.append(launch)
        if self.said is not None:
            (launch.mounts[0].source / "found.json").write_bytes(self.said)
        return self

    def wait(self, *, timeout):
        return 139

    def logs(self):
        return self.log

    def remove(self):
        self.removed += 1


SAID = b"""{"capability": "12.1", "compiler": "", "driver": "stub", "problems": ["module m: is not there"], "routes":
 [{"route": "r", "env": {}, "asked": ["m"], "failed": ""}], "modules": [{"name": "m", "routes": ["r"], "file": "",
 "problem": "is not there", "functions": {"f": true}, "methods": {}, "calls": {"f": 1}, "missing": []}]}"""


def test_in_an_image_the_script_runs_with_the_images_own_python_and_without_a_network():
    engine = Engine(SAID)
    report = module_check.in_image(engine, "localhost/x", options=("--without", "m"))
    (launch,) = engine.launches
    assert (launch.entrypoint, launch.network, engine.removed) == ("/opt/venv/bin/python", "none", 1)
    assert list(launch.command) == [
        "/run/sparkforge-checks/aot.py", "--out", "/run/sparkforge-checks/found.json", "--without", "m",
    ]  # fmt: skip
    assert report.rows() == [("m", "wrong", "f", "r")]
    assert report.plain()["passed"] is False
    with pytest.raises(CheckFailed, match="would need a compiler") as refused:
        report.demand()
    assert "module m: is not there" in refused.value.why


def test_a_script_that_does_not_come_to_its_end_is_no_verdict():
    with pytest.raises(CheckFailed, match="did not come to its end") as refused:
        module_check.in_image(Engine(None), "localhost/x")
    assert "no torch" in refused.value.why
    with pytest.raises(CheckFailed, match="did not come to its end") as refused:
        module_check.in_image(Engine(None, log=""), "localhost/x")
    assert "status 139 and said nothing" in refused.value.why


def test_a_result_says_what_was_checked_and_names_no_folder_of_this_machine():
    engine = Engine(SAID.replace(b'"file": ""', b'"file": "/opt/venv/aot/m/m.so"'))
    report = module_check.in_image(engine, "localhost/x", options=("--capability", "12.1"))
    assert report.subject.trees == {"vllm": "v" * 40, "flashinfer": "f" * 40}
    found = report.plain()
    assert (found["where"], found["aot"], found["passed"]) == ("image localhost/x", "k", False)
    assert found["modules"][0]["file"] == "m/m.so"
    assert found["options"] == ["--capability", "12.1"]
    assert "/opt" not in str(found)


def test_routes_of_parts_that_were_left_out_are_not_run():
    report = module_check.in_image(Engine(SAID, parts_left_out="cutlass-moe,xqa-decode"), "localhost/x")
    assert report.options == ["--parts-out", "cutlass-moe,xqa-decode"]
    assert report.plain()["parts_out"] == ["cutlass-moe", "xqa-decode"]


@pytest.mark.parametrize("labels", [{"aot": "none"}, {"aot": ""}, None])
def test_an_image_without_modules_has_nothing_to_check(labels):
    engine = Engine(SAID, **(labels or {}))
    if labels is None:
        engine.said_labels = {"dev.sparkforge.aot": "k"}  # an image of somebody else has no trees
    with pytest.raises(BadInput, match="holds no modules"):
        module_check.in_image(engine, "localhost/x")
