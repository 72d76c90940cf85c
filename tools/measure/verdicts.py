"""What is wrong with the samples of each measurement of builds and modules; see tools/gpu/flashinfer/verdicts.py."""

from __future__ import annotations

from typing import Any

KILLS = 5
LAST_STEP = "patches.prove"  # of bare_root.py
CACHES = {"BF16", "FP8", "FP8 and queries"}


def build(result: dict[str, Any]) -> list[str]:
    """A build with nothing to do did nothing, and an edit rebuilt what it reaches alone."""
    found = [f"no sample of {name}" for name in ("no_op", "edit") if not result[name]]
    return found + [
        f"an edit kept {sample['layers_kept']} layers and made {len(sample['layers_new'])}"
        for sample in result["edit"]
        if not sample["layers_kept"] or not sample["layers_new"]
    ]


def kill(result: dict[str, Any]) -> list[str]:
    """Killed and resumed: the same trees and manifest as an undisturbed build, and nothing besides."""
    found = [f"{name}: {result[name]}" for name in ("stray", "missing") if result[name]]
    if result["same_manifest"] is not True:
        found.append("the resumed build's manifest is another")
    if len(result["kills"]) < KILLS or any(one["ended"] for one in result["kills"]):
        found.append(f"{len(result['kills'])} kills, of which some met a build that had ended")
    return found


def structure(result: dict[str, Any]) -> list[str]:
    """Machines of ELF files, RECORDs, labels and manifest of an image."""
    found = [f"{name} is of {kind}" for name, kind in result["elf_of_other_machines"].items()]
    found += [*result["record_faults"], *result["label_faults"]]
    return found + ([] if result["elf"] and result["record_lines"] else ["no program, or no installed file, was found"])


def apply(result: dict[str, Any]) -> list[str]:
    """Every way was timed on every case."""
    ways = set(result["ways"])
    return [f"{name}: {sorted(ways - set(case['samples']))} were not timed" for name, case in result["cases"].items()
            if set(case["samples"]) != ways or not all(case["samples"].values())]  # fmt: skip


def aot_build(result: dict[str, Any]) -> list[str]:
    """Every module has its objects."""
    total = result["totals"]
    right = total["modules"] == len(result["modules"]) > 0 and total["sources"] == len(result["units"]) > 0
    return [] if right else [f"{total['modules']} modules and {total['sources']} sources are said, others are listed"]


def aot_check(result: dict[str, Any]) -> list[str]:
    """Every module that vLLM asks for is there, loads and has its functions, with no compiler at hand."""
    found = [*result["problems"], *(f"{one['route']}: {one['failed']}" for one in result["routes"] if one["failed"])]
    if result["compiler"]:
        found.append(f"a compiler was there: {result['compiler']}")
    return found + ([] if result["modules"] and result["routes"] else ["nothing was asked for"])


def aot_audit(result: dict[str, Any]) -> list[str]:
    """No module holds code of another family than 12.x, and every GEMM of FP8 and FP4 has QMMA, TMA and PDL."""
    found = []
    for module in result["modules"]:
        found += [f"{module['name']}: {one}" for one in module.get("findings", ())]
        if not module["kernels"] or any(arch.partition(".")[0] != "12" for arch in module["archs"]):
            found.append(f"{module['name']}: {module['kernels']} kernels for {module['archs']}")
        for family in module["families"]:
            if family["name"].startswith("FP8xFP4") and not (
                family["block_scaled"] and family["tma_loads"] and family["pdl_waits"]
            ):
                found.append(f"{module['name']}: {family['name']} lacks block-scaled MMAs, TMA loads or PDL waits")
    families = [family["name"] for module in result["modules"] for family in module["families"]]
    if not any(name.startswith("FP8xFP4") for name in families):
        found.append("no GEMM of FP8 and FP4 was found")
    return found


def bare_root(result: dict[str, Any]) -> list[str]:
    """Every step was taken, up to the patches' intent tests, and none failed."""
    found = [f"{one['step']}: status {one['status']}" for one in result["steps"] if one["status"] != 0]
    last = result["steps"][-1]["step"] if result["steps"] else "none"
    return found + ([] if last == LAST_STEP else [f"the last step was {last!r}, not {LAST_STEP!r}"])


def module_facts(result: dict[str, Any]) -> list[str]:
    """The kernels that trap hold no MMA and are tagged for another architecture; every object was read."""
    traps = result["traps"]
    found = [f"a kernel traps: {kind}" for kind in traps["kinds"] if " 0 MMAs, Sm75" not in kind]
    if not traps["kernels"] or not result["objects read"]:
        found.append("no kernel or no object was read")
    return found


def tolerances(result: dict[str, Any]) -> list[str]:
    """Rounding alone and each fault were measured in each kind of cache."""
    wanted = {"none", *result["faults"]}
    found = [f"{kind}: {sorted(wanted - set(cases))} not measured" for kind, cases in result["logits"].items()
             if set(cases) != wanted]  # fmt: skip
    return found + ([] if set(result["logits"]) == CACHES else ["not every kind of cache was measured"])


def groups(result: dict[str, Any]) -> list[str]:
    """Only groups that passed are kept, so what can be wrong is that there is none."""
    return [] if result["groups"] else ["no group was run"]
