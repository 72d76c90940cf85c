from __future__ import annotations

import csv
import hashlib
import os
import shutil
import subprocess
import sys

import pytest

from sparkforge.overlay import apply, compute

CHANGE = {
    "demo/a.py": b"VALUE = 'new'\n",
    "demo/fresh/c.py": b"VALUE = 'c'\n",
    "demo/gone.py": None,
    "csrc/k.cu": b"// ours\n",
}


def snapshot(site):
    return {
        str(file.relative_to(site)): (file.read_bytes(), file.stat().st_mode)
        for file in sorted(site.rglob("*"))
        if file.is_file() and file.suffix != ".pyc"
    }


def record_of(site, name="demo-1.0"):
    with (site / f"{name}.dist-info/RECORD").open(newline="") as file:
        return {row[0]: row[1:] for row in csv.reader(file)}


def test_files_are_replaced_added_and_deleted_and_the_package_says_so(demo):
    venv = demo.venv("venv")
    site, made = demo.site(venv), demo.overlay(CHANGE)
    said = apply.apply(site, made.path)
    assert said == f"demo: tree {made.manifest.tree[:12]} over demo 1.0: 2 replaced, 1 deleted, 2 added"
    assert demo.python(venv, "import demo.a, demo.fresh.c; print(demo.a.VALUE, demo.fresh.c.VALUE)") == "new c"
    assert not (site / "demo/gone.py").exists()
    assert (site / "demo/data/csrc/k.cu").read_bytes() == b"// ours\n"
    assert (site / "demo/sparkforge_tree.txt").read_text().strip() == made.manifest.tree


def test_record_tells_the_truth_and_uninstalling_leaves_nothing(demo):
    venv = demo.venv("venv")
    site = demo.site(venv)
    installer = (site / "demo-1.0.dist-info/INSTALLER").read_bytes()
    apply.apply(site, demo.overlay(CHANGE).path)
    rows = record_of(site)
    assert "demo/gone.py" not in rows
    for path, (hashed, size) in rows.items():
        data = (site / path).read_bytes()
        assert not hashed or (hashed, int(size)) == (demo.record_hash(data), len(data)), path
    listed = {path for path in snapshot(site) if path.startswith("demo")}
    assert listed == {path for path in rows if path.startswith("demo")}
    assert (site / "demo-1.0.dist-info/INSTALLER").read_bytes() == installer
    demo.uv("pip", "uninstall", "--python", venv / "bin/python", "demo")
    assert not [path for path in snapshot(site) if "demo" in path]


def test_another_venv_that_shares_the_files_is_untouched(demo):
    one, other = demo.venv("one"), demo.venv("other")
    file, twin = demo.site(one) / "demo/a.py", demo.site(other) / "demo/a.py"
    assert file.stat().st_ino == twin.stat().st_ino  # uv linked both to its cache
    before = snapshot(demo.site(other))
    apply.apply(demo.site(one), demo.overlay(CHANGE).path)
    assert file.stat().st_ino != twin.stat().st_ino
    assert snapshot(demo.site(other)) == before
    apply.revert(demo.site(one))
    assert snapshot(demo.site(other)) == before


def test_an_edit_of_the_same_size_and_time_takes_effect(demo):
    venv = demo.venv("venv")
    site, file = demo.site(venv), demo.site(venv) / "demo/a.py"
    code = "import demo.a; print(demo.a.VALUE)"
    os.utime(file, (1_000_000_000, 1_000_000_000))
    assert demo.python(venv, code) == "pin"  # leaves bytecode that only time and size guard
    apply.apply(site, demo.overlay({"demo/a.py": b"VALUE = 'two'\n"}).path)
    os.utime(file, (1_000_000_000, 1_000_000_000))
    assert file.stat().st_size == len(demo.pin["demo/a.py"])
    assert demo.python(venv, code) == "two"
    file.write_bytes(b"VALUE = 'six'\n")
    os.utime(file, (1_000_000_000, 1_000_000_000))
    assert demo.python(venv, code) == "six"  # checked by hash from now on


def test_bytecode_guarded_by_time_alone_would_have_been_stale(demo):
    venv = demo.venv("venv")
    file, code = demo.site(venv) / "demo/a.py", "import demo.a; print(demo.a.VALUE)"
    os.utime(file, (1_000_000_000, 1_000_000_000))
    demo.python(venv, code)
    file.unlink()
    file.write_bytes(b"VALUE = 'two'\n")
    os.utime(file, (1_000_000_000, 1_000_000_000))
    assert demo.python(venv, code) == "pin"


def test_reverting_gives_back_the_same_bytes(demo):
    venv = demo.venv("venv")
    site = demo.site(venv)
    before = snapshot(site)
    apply.apply(site, demo.overlay(CHANGE).path)
    assert snapshot(site) != before
    assert apply.revert(site) == ["demo: as its wheel installed it"]
    assert snapshot(site) == before
    assert not (site / "demo/fresh").exists()
    assert apply.revert(site) == ["no overlay here: nothing to do"]


def test_the_same_again_does_nothing_and_another_tree_reverts_the_first(demo):
    venv = demo.venv("venv")
    site = demo.site(venv)
    apply.apply(site, demo.overlay(CHANGE).path)
    first = snapshot(site)
    assert apply.apply(site, demo.overlay(CHANGE).path).endswith("nothing to do")
    assert snapshot(site) == first
    other = demo.overlay({"demo/sub/b.py": b"VALUE = 'other'\n"})
    apply.apply(site, other.path)
    assert (site / "demo/a.py").read_bytes() == demo.pin["demo/a.py"]
    assert (site / "demo/gone.py").read_bytes() == demo.pin["demo/gone.py"]
    assert not (site / "demo/fresh").exists()
    assert (site / "demo/sub/b.py").read_bytes() == b"VALUE = 'other'\n"


def refused(site, overlay, text, status=1):
    before = snapshot(site)
    with pytest.raises(apply.Refused) as caught:
        apply.apply(site, overlay.path)
    assert text in str(caught.value)
    assert caught.value.status == status
    assert snapshot(site) == before
    return str(caught.value)


def test_a_file_that_is_not_the_pins_stops_everything(demo):
    wheel = demo.make_wheel(
        demo.folder / "other", demo.wheel_files(demo.pin) | {"demo/data/csrc/k.cu": b"// another build\n"}
    )
    site = demo.site(demo.venv("venv", wheel))
    said = refused(site, demo.overlay(CHANGE), "demo/data/csrc/k.cu")
    assert hashlib.sha256(b"// another build\n").hexdigest() in said
    assert hashlib.sha256(demo.pin["csrc/k.cu"]).hexdigest() in said


def test_a_missing_file_and_one_that_is_there_already_are_refused(demo):
    files = demo.wheel_files(demo.pin)
    del files["demo/a.py"]
    wheel = demo.make_wheel(demo.folder / "other", files | {"demo/fresh/c.py": b"theirs"})
    said = refused(demo.site(demo.venv("venv", wheel)), demo.overlay(CHANGE), "demo/a.py: sha256 None")
    assert "demo/fresh/c.py" in said


def test_another_release_none_at_all_and_a_shadow_are_refused(demo):
    made = demo.overlay(CHANGE)
    wheel = demo.make_wheel(demo.folder / "other", demo.wheel_files(demo.pin), version="1.1")
    refused(demo.site(demo.venv("newer", wheel)), made, "demo 1.1 is not the pin's release")
    other = demo.make_wheel(demo.folder / "other", {"x.py": b""}, name="x")
    refused(demo.site(demo.venv("without", other)), made, "no demo is in")
    shadow = demo.make_wheel(demo.folder / "other", {"flashinfer_jit_cache/x.py": b""}, name="flashinfer-jit-cache")
    pin = demo.make_wheel(demo.folder / "wheels", demo.wheel_files(demo.pin))
    refused(demo.site(demo.venv("shadow", pin, shadow)), made, "flashinfer-jit-cache is installed")


def test_a_user_edit_is_never_overwritten(demo):
    site = demo.site(demo.venv("venv"))
    apply.apply(site, demo.overlay(CHANGE).path)
    (site / "demo/a.py").write_bytes(b"mine\n")
    for overlay in (demo.overlay(CHANGE), demo.overlay({})):
        refused(site, overlay, "demo/a.py was changed after the overlay was applied")
    with pytest.raises(apply.Refused, match=r"demo/a\.py was changed"):
        apply.revert(site)


def test_a_file_reached_through_a_link_is_refused(demo):
    site = demo.site(demo.venv("venv"))
    outside = demo.folder / "outside.py"
    outside.write_bytes(demo.pin["demo/a.py"])
    (site / "demo/a.py").unlink()
    (site / "demo/a.py").symlink_to(outside)
    refused(site, demo.overlay(CHANGE), "reached through a link")
    assert outside.read_bytes() == demo.pin["demo/a.py"]


def test_a_corrupt_overlay_is_refused(demo):
    site, made = demo.site(demo.venv("venv")), demo.overlay(CHANGE)
    (made.path / "files/demo/a.py").write_bytes(b"evil\n")
    refused(site, made, "not what its manifest says", 2)
    (made.path / "manifest.json").write_text("{}")
    refused(site, made, "this is not an overlay", 2)


def test_a_manifest_cannot_reach_out_of_site_packages(demo):
    site, made = demo.site(demo.venv("venv")), demo.overlay(CHANGE)
    manifest = made.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"demo/a.py"', '"demo/../../a.py"'))
    refused(site, made, "this overlay is broken", 2)


def test_a_module_that_does_not_compile_changes_nothing(demo):
    refused(demo.site(demo.venv("venv")), demo.overlay({"demo/a.py": b"def (\n"}), "does not compile")


def cpu_wheel(demo, **other):
    return demo.make_wheel(demo.folder / "cpu", demo.wheel_files(demo.pin) | other, name="demo-cpu")


def test_a_stand_in_gets_the_overlay_and_answers_to_the_pins_name(demo):
    stand_in = compute.StandIn("demo-cpu", "1.0", "1.0+cpu", {})
    venv = demo.venv("venv", cpu_wheel(demo))
    site = demo.site(venv)
    before = snapshot(site)
    made = demo.overlay(CHANGE, stand_ins=[stand_in])
    apply.apply(site, made.path)
    assert (
        demo.python(venv, "import importlib.metadata as m; print(m.version('demo'), m.version('demo-cpu'))")
        == "1.0+cpu 1.0"
    )
    assert apply.apply(site, made.path).endswith("nothing to do")  # the alias is not taken for an installation
    apply.revert(site)
    assert snapshot(site) == before


def test_a_file_that_differs_in_the_stand_in_needs_its_hash_accepted(demo):
    theirs = b"VALUE = 'cpu'\n"
    site = demo.site(demo.venv("venv", cpu_wheel(demo, **{"demo/a.py": theirs})))
    strict = compute.StandIn("demo-cpu", "1.0", "", {})
    refused(site, demo.overlay(CHANGE, stand_ins=[strict]), "demo/a.py")
    wrong = compute.StandIn("demo-cpu", "1.0", "", {"demo/a.py": "0" * 64})
    refused(site, demo.overlay(CHANGE, stand_ins=[wrong]), "demo/a.py")
    right = compute.StandIn("demo-cpu", "1.0", "", {"demo/a.py": hashlib.sha256(theirs).hexdigest()})
    apply.apply(site, demo.overlay(CHANGE, stand_ins=[right]).path)
    assert (site / "demo/a.py").read_bytes() == CHANGE["demo/a.py"]
    apply.revert(site)
    assert (site / "demo/a.py").read_bytes() == theirs


def test_pin_and_stand_in_together_are_refused(demo):
    stand_in = compute.StandIn("demo-cpu", "1.0", "", {})
    venv = demo.venv("venv")
    demo.install(venv, cpu_wheel(demo))
    refused(demo.site(venv), demo.overlay(CHANGE, stand_ins=[stand_in]), "are both in")


LAYER = {path: data for path, data in CHANGE.items() if data is not None}


def of_the_package(site):
    """A snapshot without what the overlay keeps for itself, and without RECORD, which lists that."""
    return {path: data for path, data in snapshot(site).items() if "dist-info" not in str(path)}


def test_a_layer_copied_over_the_site_is_the_same_as_in_place_and_carries_no_originals(demo):
    one, other = demo.site(demo.venv("one")), demo.site(demo.venv("other"))
    before, made, out = snapshot(one), demo.overlay(LAYER), demo.folder / "layer"
    apply.apply(one, made.path, out=out)
    assert snapshot(one) == before
    apply.apply(other, made.path)
    shutil.copytree(out, one, dirs_exist_ok=True)
    assert of_the_package(one) == of_the_package(other)
    (state,) = one.glob(f"*.dist-info/{apply.STATE}")
    assert [file.name for file in state.rglob("*")] == ["state.json"]
    listed = (state.parent / "RECORD").read_text()
    assert "originals" not in listed
    assert all((one / row.split(",")[0]).exists() for row in listed.splitlines() if not row.startswith("../"))
    with pytest.raises(apply.Refused, match="layer cannot be made"):
        apply.apply(one, demo.overlay(CHANGE).path, out=demo.folder / "layer2")


def test_what_was_laid_as_a_layer_stays_and_is_never_half_taken_off(demo):
    site, made, out = demo.site(demo.venv("venv")), demo.overlay(LAYER), demo.folder / "layer"
    apply.apply(site, made.path, out=out)
    shutil.copytree(out, site, dirs_exist_ok=True)
    laid = snapshot(site)
    assert apply.apply(site, made.path).endswith("nothing to do")
    apply.check(site, made.path)
    another = demo.overlay({"demo/sub/b.py": b"VALUE = 'other'\n"}).path
    for attempt in (apply.revert, lambda at: apply.apply(at, another), lambda at: apply.check(at, another)):
        with pytest.raises(apply.Refused, match="is a layer"):
            attempt(site)
        assert snapshot(site) == laid


def test_a_layer_is_made_anew_where_another_one_was_made(demo):
    site, out = demo.site(demo.venv("venv")), demo.folder / "layer"
    apply.apply(site, demo.overlay({"demo/sub/b.py": b"VALUE = 'other'\n"}).path, out=out)
    apply.apply(site, demo.overlay(LAYER).path, out=out)
    again = demo.folder / "again"
    apply.apply(site, demo.overlay(LAYER).path, out=again)
    assert snapshot(out) == snapshot(again)


def test_bytecode_for_a_python_that_is_not_here_is_dropped_or_refused(demo):
    site = demo.folder / "prefix/lib/python3.99/site-packages"
    shutil.copytree(demo.site(demo.venv("venv")), site)
    stale = site / "demo/__pycache__/a.cpython-399.pyc"
    stale.parent.mkdir()
    stale.write_bytes(b"stale")
    made = demo.overlay({"demo/a.py": b"VALUE = 'two'\n"})
    with pytest.raises(apply.Refused, match="stale bytecode"):
        apply.apply(site, made.path, out=demo.folder / "layer")
    assert not [file for file in (demo.folder / "layer").rglob("*") if file.is_file()]
    apply.apply(site, made.path)
    assert not stale.exists()


KILLED = """
import os, runpy, sys
calls, limit = 0, int(sys.argv[1])
def hook(event, args):
    global calls
    if event in {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "shutil.copyfile", "os.chmod"} or (
        event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)):
        calls += 1
        if calls > limit:
            os.kill(os.getpid(), 9)
sys.addaudithook(hook)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["pin", "other tree", "revert"])
def test_killed_at_every_step_the_next_run_recovers(demo, start):
    site = demo.site(demo.venv("venv"))
    pin, made = snapshot(site), demo.overlay(CHANGE)
    apply.apply(site, made.path)
    wanted = snapshot(site)
    words = ["--revert"] if start == "revert" else ["--overlay", str(made.path)]
    for limit in range(200):
        apply.revert(site)
        assert snapshot(site) == pin
        if start == "other tree":
            apply.apply(site, demo.overlay({"demo/sub/b.py": b"VALUE = 'other'\n"}).path)
        elif start == "revert":
            apply.apply(site, made.path)
        command = [sys.executable, "-c", KILLED, str(limit), apply.__file__, "--site", site, *words]
        code = subprocess.run(command, capture_output=True, check=False).returncode
        apply.apply(site, made.path)
        assert snapshot(site) == wanted, limit
        if code == 0:
            assert limit > 10
            return
        assert code == -9
    pytest.fail("it never ended")


def test_it_runs_as_a_script_with_nothing_of_ours_importable(demo, tmp_path):
    site, made = demo.site(demo.venv("venv")), demo.overlay(CHANGE)
    script = tmp_path / "apply.py"
    shutil.copy(apply.__file__, script)

    def run(*words):
        command = [sys.executable, "-I", "-S", script, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("--site", site, "--overlay", made.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert run("--site", site).returncode == 2
    (site / "demo/a.py").write_bytes(b"mine\n")
    done = run("--site", site, "--revert")
    assert done.returncode == 1
    assert done.stderr.startswith("demo/a.py was changed")
    assert "Traceback" not in done.stderr
    assert run("--site", site, "--overlay", tmp_path / "no").returncode == 2
