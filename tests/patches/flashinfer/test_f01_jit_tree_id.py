"""F-01: modules compiled from other sources are never loaded, and build files never go stale."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

TREE_A = "a" * 40
TREE_B = "b" * 40

REPORT = """
import json
from flashinfer.jit import env
print(json.dumps({name: str(getattr(env, "FLASHINFER_" + name))
                  for name in ("WORKSPACE_DIR", "JIT_DIR", "GEN_SRC_DIR", "AOT_DIR")}))
"""


def install(site: Path, package: Path, tree_id: str | None) -> Path:
    """As much of the package as decides where compiled modules lie, with its real files."""
    target = site / "flashinfer"
    (target / "jit").mkdir(parents=True)
    for name in ("version.py", "_build_meta.py", "compilation_context.py"):
        shutil.copy(package / name, target / name)
    for source in (package / "jit").glob("*.py"):
        shutil.copy(source, target / "jit")
    (target / "__init__.py").write_text("")
    (target / "jit/__init__.py").write_text("")
    if tree_id is not None:
        (target / "sparkforge_tree.txt").write_text(tree_id + "\n")
    return target


def run(site: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]),
        "FLASHINFER_WORKSPACE_BASE": str(cache),
        "FLASHINFER_CUDA_ARCH_LIST": "12.1f",
        "FLASHINFER_DISABLE_VERSION_CHECK": "1",
    }
    return subprocess.run([sys.executable, "-c", REPORT], env=env, capture_output=True, text=True, check=False)


def directories(site: Path, cache: Path) -> dict[str, str]:
    done = run(site, cache)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_trees_of_one_version_share_no_cache(tmp_path, package):
    for name, tree_id in (("one", TREE_A), ("other", TREE_B)):
        install(tmp_path / name, package, tree_id)
    one, other = (directories(tmp_path / name, tmp_path / "cache") for name in ("one", "other"))
    for key in ("WORKSPACE_DIR", "JIT_DIR", "GEN_SRC_DIR"):
        assert one[key] != other[key], f"{key} is shared by two trees"
        assert TREE_A in Path(one[key]).parts
        assert TREE_B in Path(other[key]).parts


def test_ahead_of_time_modules_lie_below_the_tree_id(tmp_path, package):
    target = install(tmp_path / "site", package, TREE_A)
    assert directories(tmp_path / "site", tmp_path / "cache")["AOT_DIR"] == str(target / "data/aot" / TREE_A)


def test_modules_of_a_jit_cache_package_are_not_used_for_a_tree(tmp_path, package):
    site = tmp_path / "site"
    target = install(site, package, TREE_A)
    foreign = site / "flashinfer_jit_cache"
    foreign.mkdir()
    (foreign / "__init__.py").write_text(
        f"__version__ = '0'\ndef get_jit_cache_dir():\n    return {str(tmp_path / 'foreign')!r}\n"
    )
    assert directories(site, tmp_path / "cache")["AOT_DIR"] == str(target / "data/aot" / TREE_A)


def test_without_a_tree_id_the_paths_are_upstreams(tmp_path, package):
    target = install(tmp_path / "site", package, None)
    found = directories(tmp_path / "site", tmp_path / "cache")
    version = (package / "_build_meta.py").read_text().split('__version__ = "')[1].split('"')[0]
    assert found["WORKSPACE_DIR"] == str(tmp_path / "cache/.cache/flashinfer" / version / "121f")
    assert found["AOT_DIR"] == str(target / "data/aot")


def test_a_file_that_holds_no_tree_id_is_refused(tmp_path, package):
    for number, text in enumerate(("../elsewhere", "", "A" * 40, TREE_A + "\n" + TREE_B)):
        site = tmp_path / str(number)
        install(site, package, text)
        done = run(site, tmp_path / "cache")
        assert done.returncode != 0, f"{text!r} was taken for a tree id"
        assert "sparkforge_tree.txt" in done.stderr


def spec(core, value: str):
    return core.JitSpec(
        name="probe",
        sources=[Path("/nowhere/probe.cpp")],
        extra_cflags=[f"-DVALUE={value}"],
        extra_cuda_cflags=[f"-DVALUE={value}"],
        extra_ldflags=None,
        extra_include_dirs=None,
    )


def test_changed_flags_reach_an_existing_build_file(tmp_path, monkeypatch, toolkit):
    from flashinfer.jit import core

    seen: list[str] = []
    monkeypatch.setattr(core.jit_env, "FLASHINFER_JIT_DIR", tmp_path / "ops")
    monkeypatch.setattr(core, "run_ninja", lambda _dir, path, _verbose: seen.append(path.read_text()))
    spec(core, "1").build(verbose=False)
    spec(core, "2").build(verbose=False)
    assert "-DVALUE=1" in seen[0]
    assert "-DVALUE=2" in seen[1], "build.ninja of the earlier flags was used again"
    assert "-DVALUE=1" not in seen[1]


def test_changed_flags_reach_the_build_of_several_modules(tmp_path, monkeypatch, toolkit):
    from flashinfer.jit import core

    monkeypatch.setattr(core.jit_env, "FLASHINFER_JIT_DIR", tmp_path / "ops")
    monkeypatch.setattr(core, "run_ninja", lambda *_: None)
    for value in ("1", "2"):
        core.build_jit_specs([spec(core, value)], skip_prebuilt=False)
    text = (tmp_path / "ops/probe/build.ninja").read_text()
    assert "-DVALUE=2" in text, "build.ninja of the earlier flags was used again"


def test_an_unchanged_build_file_is_not_touched(tmp_path, monkeypatch, toolkit):
    from flashinfer.jit import core

    monkeypatch.setattr(core.jit_env, "FLASHINFER_JIT_DIR", tmp_path / "ops")
    monkeypatch.setattr(core, "run_ninja", lambda *_: None)
    spec(core, "1").build(verbose=False)
    path = tmp_path / "ops/probe/build.ninja"
    os.utime(path, ns=(1, 1))
    spec(core, "1").build(verbose=False)
    assert path.stat().st_mtime_ns == 1, "a file with the same content was written, so that all compiles anew"
