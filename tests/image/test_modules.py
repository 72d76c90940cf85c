"""The step of an image's modules: left out where they do not belong, one row of the plan, and they load in the base."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkforge.aot import modules as build
from sparkforge.aot.selection import PartModules
from sparkforge.core.errors import BadInput, EnvironmentLacks
from sparkforge.core.pipeline import Pipeline
from sparkforge.core.platforms import Platform
from sparkforge.image import image_step, module_step, request
from sparkforge.image.part_steps import Upstreams
from sparkforge.inputs.recipes import load_stack
from sparkforge.inspect import findings
from sparkforge.inspect import module_facts as facts


def asked(**words):
    return request.parse(load_stack(), **words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({}, ""),
        ({"arch": "12.0f,12.1f"}, ""),
        ({"target": "cpu"}, "compiles nothing for a GPU"),
        ({"arch": "9.0a,12.1f"}, "load these on a GPU that is no SM12x"),
        ({"aot": "none"}, "--aot none"),
    ],
)
def test_modules_are_for_images_that_serve_on_sm12x_alone(words, why):
    said = module_step.ModuleJob(None, load_stack(), asked(**words)).none
    assert (why in said) if why else said == ""


def test_a_negative_number_of_compilers_and_another_choice_of_modules_are_bad_input():
    with pytest.raises(BadInput, match="--jobs -1"):
        asked(jobs=-1)
    with pytest.raises(BadInput, match="--aot some") as refused:
        asked(aot="some")
    assert refused.value.why == "choices: needed, all, none"


def module(**versions):
    return facts.BuiltModule(
        name="m", file="m/m.so", sha256="0" * 64, size=1, exports=["f"], needed=[], versions=versions, sources="",
        link_seconds=0.0,
    )  # fmt: skip


def some(tmp_path, *, compiled=0, left_out=None, **versions):
    said = facts.AotFacts(
        format=2, key="k" * 64, platform="linux/amd64", archs=["12.1f"], tree="t" * 40, toolchain="", versions={},
        modules=[module(**versions)], units=[], reads={}, left_out=left_out or {},
    )  # fmt: skip
    return build.BuiltModules(tmp_path, said, compiled, compiled, 7.0, 5.0)


def test_modules_of_a_newer_compiler_than_the_base_are_refused(tmp_path):
    bases = load_stack().bases
    debian, ubuntu = bases["bootstrap"], bases["ngc"]
    module_step.fits(some(tmp_path, GLIBC="2.36", GLIBCXX="3.4.30"), debian)
    newer = some(tmp_path, GLIBC="2.34", GLIBCXX="3.4.32")
    module_step.fits(newer, ubuntu)
    with pytest.raises(EnvironmentLacks, match="would not load") as refused:
        module_step.fits(newer, debian)
    assert "GLIBCXX_3.4.32" in refused.value.why
    with pytest.raises(EnvironmentLacks, match="would not load"):
        module_step.fits(some(tmp_path, GLIBC="2.38"), debian)


def test_every_base_has_a_known_libstdcxx():
    assert {base.glibc for base in load_stack().bases.values()} <= set(findings.GLIBCXX)


_spec = importlib.util.spec_from_file_location("aot_toy", Path(__file__).parents[1] / "aot" / "conftest.py")
_toy = sys.modules["aot_toy"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_toy)
shared, toy = _toy.shared, _toy.toy  # FlashInfer in miniature, compiled for real


@pytest.fixture
def step(toy, monkeypatch):
    """The step on a toy in FlashInfer's place: what it is made from is given, not fetched; all else is done."""
    monkeypatch.setattr(module_step.ModuleJob, "wanted", lambda *_: toy.wanted())
    monkeypatch.setattr(module_step.ModuleJob, "python", lambda _: Path(sys.executable))

    def step(*, overlay=True, held=True, dry=False, **words):
        monkeypatch.setattr(module_step.fetch, "held", lambda *_: toy.wheel if held else None)
        line = Pipeline(toy.store, "line", dry=dry)
        stack = load_stack()
        job = module_step.ModuleJob(toy.store, stack, asked(dry=dry, **words))
        found = job.step(line, toy.wanted().overlay if overlay else None, stack.bases["bootstrap"])
        return found, line.ran

    return step


def test_the_step_is_a_row_of_its_own_that_says_what_it_did(step, toy, capsys):
    planned, (row,) = step(dry=True)
    assert (planned.key, planned.modules, row.name, row.cached) == (None, None, "aot", False)
    assert "[plan] aot: not in the store yet" in capsys.readouterr().err
    made, (row,) = step()
    assert (made.key, row.name, row.cached) == (toy.build().facts.key, "aot", False)
    assert set(made.held) == {"one", "two"}
    assert "compiled 3 of 4 objects" in capsys.readouterr().err
    again, (row,) = step()
    assert (again.key, again.held, row.cached) == (made.key, made.held, True)
    assert "[cached] aot: 2 modules reused" in capsys.readouterr().err


def test_an_edit_of_the_series_is_another_set_of_modules(step, toy):
    before, _ = step()
    toy.edit("flashinfer/data/include/toy/first.h", "#pragma once\n#define FIRST 7\n")
    after, (row,) = step()
    assert (after.key != before.key, row.cached) == (True, False)
    assert "overlay flashinfer" in row.why


@pytest.mark.parametrize("lacking", ["overlay", "held"])
def test_a_plan_whose_sources_are_not_there_yet_waits_for_them(step, lacking):
    planned, (row,) = step(dry=True, **{lacking: False})
    assert (planned.key, row.why) == (None, "follows all, overlay flashinfer")


def test_leaving_them_out_is_said_and_is_no_row(step, capsys):
    ahead, rows = step(aot="none")
    assert (ahead.modules, ahead.key, rows) == (None, "none", [])
    assert ahead.left_out == {"*": "--aot none; a server compiles what it needs when it starts"}
    assert ahead.parts_left_out == {}
    assert "[ none ] aot: --aot none" in capsys.readouterr().err
    ahead, _ = step(target="cpu")
    assert (ahead.key, ahead.left_out) == ("", {})


def test_an_image_says_which_modules_it_lacks_and_which_parts_it_refuses_for_that(tmp_path):
    made = some(tmp_path, left_out={"fused_moe_120": ["cutlass-moe"], "xqa": ["xqa-decode"]})
    ahead = module_step.ImageModules(made, made.facts.key)
    assert ahead.held == {"m": "0" * 64}
    assert ahead.left_out["fused_moe_120"] == "only for parts that are off by default: cutlass-moe"
    assert ahead.parts_left_out == {"cutlass-moe": ["fused_moe_120"], "xqa-decode": ["xqa"]}


def test_only_needed_leaves_modules_out_for_the_sake_of_parts(store, monkeypatch):
    wheel, part = store.root / "wheel", PartModules("p", on=False, modules=("m",))
    monkeypatch.setattr(module_step.fetch, "fetch_all", lambda *_: [wheel])
    for choice, parts in (("needed", (part,)), ("all", ())):
        job = module_step.ModuleJob(store, load_stack(), asked(aot=choice), [part])
        assert job.wanted("overlay").parts == parts


def test_an_image_is_another_one_with_and_without_modules():
    parts = image_step.ImageParts(Upstreams({}, {}), None, Wheels(), None, module_step.ImageModules(None, "none"))
    other = replace(parts, modules=module_step.ImageModules(None, "k" * 64))
    first, second = (image_step.inputs(asked(), one) for one in (parts, other))
    assert {name for name in first if first[name] != second[name]} == {"aot", "aot left out"}


class Wheels:
    key = "w"


def test_the_wheel_of_the_images_platform_is_taken():
    stack = load_stack()
    for oci in ("linux/amd64", "linux/arm64"):
        wheel = module_step.ModuleJob(None, stack, asked(platform=oci))._wheel
        assert wheel.file == stack.upstreams["flashinfer"].wheels[oci]
    assert Platform.host().oci in ("linux/amd64", "linux/arm64")


def test_an_environment_that_has_to_be_made_is_counted(store, monkeypatch):
    stack = load_stack()
    monkeypatch.setattr(module_step.venv, "wanting", lambda *_: ("torch",))
    job = module_step.ModuleJob(store, stack, asked())
    assert job.environment() == ("torch",)
    assert module_step.ModuleJob(store, stack, asked(aot="none")).environment() == ()

    def lacking(*_):
        raise EnvironmentLacks("no lock for this Python")

    monkeypatch.setattr(module_step.venv, "wanting", lacking)
    assert job.environment() == ()
    monkeypatch.setattr(module_step.venv, "ensure", lacking)
    with pytest.raises(EnvironmentLacks, match="no environment") as refused:
        job.python()
    assert "--aot none" in refused.value.do


def test_what_it_cost_is_told_where_it_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(module_step, "RESULTS", tmp_path)

    def cost(**words):
        return module_step.ModuleJob(None, None, asked(**words))._cost()

    assert cost() == ""
    (tmp_path / "flashinfer").mkdir()
    for name, seconds in (("aot-needed-12.1f-arm64", 540.0), ("aot-12.1f-arm64", 6000.0)):
        (tmp_path / "flashinfer" / f"{name}.json").write_text(f'{{"totals": {{"cpu_seconds": {seconds}}}}}')
    assert "(9 CPU minutes when measured)" in cost(platform="linux/arm64")
    assert "(100 CPU minutes when measured)" in cost(platform="linux/arm64", aot="all")
    assert cost(platform="linux/amd64") == ""


def test_modules_that_the_store_does_not_have_are_asked_of_aot_build(store, monkeypatch):
    with pytest.raises(BadInput, match="no modules for this"):
        module_step.ModuleJob(store, load_stack(), asked(aot="none")).built()
    job = module_step.ModuleJob(store, load_stack(), asked(aot="all"))
    manifest = SimpleNamespace(tree="t" * 40)
    wanted = SimpleNamespace(
        overlay=SimpleNamespace(manifest=manifest), platform=Platform.host(), archs=job.request.archs
    )
    monkeypatch.setattr(module_step.ModuleJob, "wanted", lambda _: wanted)
    monkeypatch.setattr(build, "known", lambda *_: None)
    with pytest.raises(BadInput, match="no modules to look at") as refused:
        job.built()
    assert refused.value.do == "invoke aot.build --aot all"
