"""What is demanded of the fitted model's engines, of the graphs' record, of CUTLASS in graphs and of the server.

The fitted model is the tiny one (4 layers, hidden 512, random weights) with an lm_head that was fitted to say chosen
replies (sharp.py). "As fitted" compares an engine's replies with those, token for token, and not with another engine.
"""

from __future__ import annotations

import math

import numpy as np
from judge import Demand, Judge
from plan import LARGE_FAULTS as LARGE
from rules import LIMITS, ROUNDING


def fitted(judge: Judge, name: str = "sharp") -> None:
    """The fit itself: every wanted token leads by the margin, in every pass that it was made for."""
    if judge.missing("sharp", f"lm_head of {name}", name):
        return
    found = judge.pool.json(name)
    said = f"{found['places']} places, least lead {found['least']:.3f} spreads after {found['rounds']} rounds"
    judge.add("sharp", f"lm_head of {name}", said, ("least", ">=", found["margin"]), ("places", ">", 0), **found)


def model_of(job: str) -> str:
    """The fitted model that an engine of this name runs on."""
    return "sharp8" if "fp8" in job.split(".") else "sharp"


def replayed(told: dict, steps: dict) -> tuple[list[Demand], dict, str]:
    """That graphs were replayed exactly where the mode says so: demands, their numbers, words.

    A graph of a whole model (FULL) holds the attention. It is for decode alone: every request with as many tokens, one
    and the drafts. With n-gram a request for which no draft is found has one token: then no such graph can be
    replayed. Pieces (PIECEWISE) hold no attention; where they are not captured either, nothing is replayed.
    """
    mode = str(told.get("graphs", "")).rsplit(".", 1)[-1]
    full, pieces, uniform, small = (
        steps.get(key, 0) for key in ("replays FULL", "replays PIECEWISE", "uniform", "other small")
    )
    numbers = {
        "mode": mode,
        "replays FULL": full,
        "replays PIECEWISE": pieces,
        "uniform": uniform,
        "other small": small,
    }
    numbers["pieces replayed"] = pieces > 0
    of_graphs = {key: value for key, value in steps.items() if key.startswith("graph ")}
    if of_graphs:
        numbers["replays of each graph"] = of_graphs
    whole: list[Demand] = [("replays FULL", "==", uniform), ("replays FULL", ">", 0)]
    wanted: dict[str, list[Demand]] = {
        "NONE": [("replays FULL", "==", 0), ("replays PIECEWISE", "==", 0)],
        "PIECEWISE": [("replays FULL", "==", 0), ("pieces replayed", "==", uniform + small > 0)],
        "FULL_DECODE_ONLY": [*whole, ("replays PIECEWISE", "==", 0)],
        "FULL_AND_PIECEWISE": [*whole, ("pieces replayed", "==", small > 0)],
    }
    said = f"{full} replays with attention, {pieces} of pieces, {uniform} uniform batches, {mode}"
    return wanted.get(mode, [("mode", "==", "a mode that is known")]), numbers, said


def _summed(told: dict) -> dict:
    keys = {key for step in ("main", "mixed") for key in told.get(step, {})} - {"replies", "seconds", "largest"}
    return {key: sum(told.get(step, {}).get(key, 0) for step in ("main", "mixed")) for key in keys}


def _tokens_off(replies: list[list[int]], wanted: list[list[int]]) -> int:
    return sum(x != y for a, b in zip(replies, wanted, strict=True) for x, y in zip(a, b, strict=True))


def known(judge: Judge, label: str, job: str, base: str, wanted: list[list[int]], *, section: str = "sharp") -> None:
    """Every token is as fitted; graphs are replayed where they can be; leads move by rounding alone."""
    if judge.missing(section, label, job, model_of(job)):
        return
    told = judge.pool.json(job)
    replies = judge.replies(job, "main", "mixed")
    equal = sum(a == b for a, b in zip(replies, wanted, strict=True))
    steps = _summed(told)
    demands, numbers, said = replayed(told, steps)
    demands += [("equal", "==", len(wanted)), ("other tokens", "==", 0)]
    numbers |= {"replies": len(wanted), "equal": equal, "tokens": sum(map(len, wanted)), "steps": steps,
                "other tokens": _tokens_off(replies, wanted), "drafted": steps.get("drafted", 0)}  # fmt: skip
    if "ngram" in job:
        demands.append(("drafted", ">", 0))
        said += f", {numbers['drafted']} drafted"
    if "Q" in job.split("."):
        demands.append(("xqa", ">", 0))
        numbers["xqa"] = told.get("xqa", 0)
        said += f", {numbers['xqa']} calls of XQA"
    said = f"{equal} of {len(wanted)} replies as fitted, {said}"
    if moved := _moved(judge, job, base):
        demands += [("lead rms", "<=", lead_limit(job)), ("least lead in lead rms", ">=", "least lead in lead rms")]
        numbers |= moved | {"moved against": base}
        said += (
            f"; least lead {moved['least lead']:.2f}, moved {moved['lead rms']:.3f} rms, {moved['lead most']:.2f} most"
        )
    judge.add(section, label, said, *demands, **numbers)


def lead_limit(job: str) -> str:
    """Name of the limit on the rms by which leads move."""
    return "lead rms, FP8 KV" if "fp8" in job.split(".") else "lead rms"


def _moved(judge: Judge, job: str, base: str) -> dict | None:
    """By how much the lead of the likeliest token differs from the base's, in spreads."""
    mine, theirs = judge.pool.arrays(job), judge.pool.arrays(base)
    keys = sorted(
        key for key in mine if key.endswith(".logits") and key in theirs and key.split(".")[0] in ("main", "mixed")
    )
    if not keys or any(mine[key].shape != theirs[key].shape for key in keys):
        return None
    spread = judge.pool.json(model_of(job))["spread"]
    a, b = (np.concatenate([arrays[key] for key in keys]).astype(np.float64) / spread for arrays in (mine, theirs))
    lead, other = a[:, 0] - a[:, 1], b[:, 0] - b[:, 1]
    rms = float(np.sqrt(((lead - other) ** 2).mean()))
    return {
        "places": len(a), "least lead": float(lead.min()), "rms": float(np.sqrt(((a - b)[:, 0] ** 2).mean())),
        "most": float(np.abs((a - b)[:, 0]).max()), "lead rms": rms, "lead most": float(np.abs(lead - other).max()),
        "least lead in lead rms": float(lead.min() / max(rms, 1e-6)),
    }  # fmt: skip


def planted(judge: Judge, job: str, wanted: list[list[int]]) -> None:
    """Each fault is found in each layer: it changes tokens, or moves leads by more than `known` lets pass.

    A large fault must change tokens in each layer: tokens are all that a soak sees. Without faults all is as before.
    """
    words = "FP8 KV, " if "fp8" in job.split(".") else ""
    if judge.missing("sharp", f"{words}faults planted", job, model_of(job)):
        return
    found = (judge.pool.json(job) or {}).get("planted", {})
    arrays, spread = judge.pool.arrays(job), judge.pool.json(model_of(job))["spread"]
    rows: dict[str, list[tuple[int, float]]] = {}
    for name, replies in found.get("faults", {}).items():
        moved = _lead_rms(arrays, name, replies, found["healed"]) / spread
        rows.setdefault(name.rsplit(",", 1)[0], []).append((_tokens_off(replies, wanted), moved))
    for kind, layers in sorted(rows.items()):
        changed, moved = [count for count, _ in layers], [rms for _, rms in layers]
        # A fault that changes tokens is found, however little leads before them moved. Rounding between two modes, which
        # the limit lets pass, is not in these leads: it is added.
        seen = [1e9 if count else math.hypot(rms, ROUNDING[lead_limit(job)]) for count, rms in layers]
        demands: list[Demand] = [("least seen", ">", lead_limit(job))]
        if kind in LARGE:
            demands.append(("least changed", ">", 0))
        said = f"of {sum(map(len, wanted))} tokens changed, by layer: {', '.join(map(str, changed))}; leads moved "
        said += f"{', '.join(f'{rms:.2f}' for rms in moved)} rms (limit {LIMITS[lead_limit(job)]})"
        numbers = {"changed": changed, "lead rms": moved, "least seen": min(seen), "least changed": min(changed)}
        judge.add("sharp", f"{words}fault: {kind}", said, *demands, **numbers)
    demands = [("faults", ">", 0), ("healed", "==", True)]
    healed = found.get("healed") == wanted
    said = f"{len(found.get('faults', {}))} faults, then as before: {healed}"
    numbers = {"faults": len(found.get("faults", {})), "healed": healed}
    judge.add("sharp", f"{words}faults taken back", said, *demands, **numbers)


def _lead_rms(arrays: dict, name: str, replies: list[list[int]], sound: list[list[int]]) -> float:
    """Rms by which a fault moves leads at places with the same text before them; NaN where there is none."""
    off = []
    for number, (mine, theirs) in enumerate(zip(replies, sound, strict=True)):
        same = next((at for at, (x, y) in enumerate(zip(mine, theirs, strict=True)) if x != y), len(mine))
        a, b = (arrays.get(f"{key}.{number}.logits") for key in (name, "healed"))
        if a is not None and b is not None:
            off.append((a[:same, 0] - a[:same, 1] - b[:same, 0] + b[:same, 1]).astype(np.float64))
    every = np.concatenate(off) if off else np.empty(0)
    return float(np.sqrt((every**2).mean())) if every.size else float("nan")


def soak(judge: Judge, name: str, least: dict[str, int] | None = None) -> None:
    """One soak: nothing failed, every reply is as fitted, and `least` was had of each count.

    "replays" of `least` are those of graphs that hold attention; where none is captured, steps that replay pieces.
    """
    if judge.missing("soak", name, name):
        return
    told = judge.pool.json(name) or {}
    found = told.get("soak", {"failed": "wrote nothing"})
    demands, numbers, graphs = replayed(told, found)
    numbers |= {key: value for key, value in found.items() if key != "kept" and not key.startswith("graph ")}
    numbers |= {"failed": found.get("failed") or "", "equal": found.get("equal", 0)}
    demands += [("failed", "==", ""), ("equal", ">", 0), ("differing", "==", 0)]
    if "Q" in name.split("."):
        demands.append(("xqa", ">", 0))
        numbers["xqa"] = told.get("xqa", 0)
    said = f"{found.get('compositions', 0)} batches, {found.get('mixed', 0)} mixed, {found.get('equal', 0)} replies as fitted, "
    said += f"{found.get('differing', 0)} not, {graphs}"
    if found.get("failed"):
        said = f"{found['failed'][:80]}; {said}"
    for count, wanted in (least or {}).items():
        key = count if count != "replays" else "replays FULL" if "FULL" in numbers["mode"] else "steps PIECEWISE"
        demands.append((key, ">=", wanted))
        if found.get(key, 0) < wanted:
            said = f"{found.get(key, 0)} {key} of {wanted}; {said}"
    kept = [{"reply": one["reply"], "prompt": len(one["prompt"])} for one in found.get("kept", [])[:4]]
    judge.add("soak", name, said, *demands, **numbers, differing_replies=kept)


def captured(judge: Judge, name: str) -> None:
    """What the graphs hold is what a capture of now holds, and its owners live; what was spoilt was seen."""
    if judge.missing("captured", name, name):
        return
    told = judge.pool.json(name) or {}
    found = told.get("recorded", {})
    counts, soaked = found.get("counts", {}), found.get("soak", {})
    wrong = {key: value for key, value in counts.items() if key.startswith("wrong")}
    numbers = {
        "wrong": sum(wrong.values()),
        "replays": sum(value for key, value in counts.items() if key.startswith("replays ") and "not" not in key),
        "captures beside": sum(value for key, value in counts.items() if key.startswith("captures beside")),
        "captured anew": counts.get("captured anew", 0),
        "differing": soaked.get("differing", 1),
        "failed": soaked.get("failed", "did not run") or "",
    }
    kinds = found.get("listing", {}).get("nodes", {})
    nodes = sum(kinds.get(kind, 0) for kind in ("kernel", "memcpy", "memset"))
    said = f"{numbers['captured anew']} graphs, {nodes} nodes, captured anew and {numbers['captures beside']} times beside "
    said += f"{numbers['replays']} replays, wrong: {wrong or 'nothing'}"
    more = {key: value for key, value in found.items() if key not in ("planted", "soak")}
    judge.add(
        "captured", name, said, ("wrong", "==", 0), ("replays", ">", 0), ("captures beside", ">", 0),
        ("captured anew", ">", 0), ("differing", "==", 0), ("failed", "==", ""), **numbers, recorded=more,
        soak={key: value for key, value in soaked.items() if key != "kept"},
    )  # fmt: skip
    spoilt(judge, name, found.get("planted", {}))


def spoilt(judge: Judge, name: str, told: dict) -> None:
    """Of what was planted, everything must have been seen, and nothing of what was not."""
    quiet = told.get("nothing") == []
    seen = {key: bool(value) for key, value in told.items() if key not in ("nothing", "freed")}
    said = f"nothing planted: {'silent' if quiet else told.get('nothing')}; " + ", ".join(
        f"{key}: {'seen' if value else 'NOT SEEN'}" for key, value in seen.items()
    )
    judge.add(
        "captured", f"{name}, defects planted", said, ("silent without", "==", True), ("planted", ">", 0),
        ("not seen", "==", 0), planted=len(seen), told=told,
        **{"silent without": quiet, "not seen": sum(not value for value in seen.values())},
    )  # fmt: skip


def cutlass(judge: Judge) -> None:
    """The CUTLASS MoE in graphs."""
    if judge.missing("captured", "CUTLASS MoE in BF16", "cutlass"):
        return
    found = judge.pool.json("cutlass")
    counts, holes = found.get("counts", {}), found.get("holes", {})
    graphs = holes.get("graphs", 0)
    numbers = {
        "graphs": graphs,
        "unread": holes.get("graphs whose outputs stay with all holes scribbled", 0),
        "repeat": holes.get("graphs whose outputs repeat", 0),
        "clones run": holes.get("clones run", 0),
        "wrong": found.get("wrong"),
        "replays": counts.get("replays", 0),
        "captures beside": counts.get("captures beside", 0),
        "sizes with two tactics": len(found.get("differing tactics", [1])),
        "off": max(found["worst"].values()),
    }
    said = (
        f"{numbers['replays']} replays, {numbers['captures beside']} captured beside, {numbers['wrong']} wrong, "
        f"{holes.get('words with holes')} words with holes, unread in {numbers['unread']} of {graphs} graphs, "
        f"off by {numbers['off']:.4f} (limit {LIMITS['CUTLASS off']})"
    )
    judge.add(
        "captured", "CUTLASS MoE in BF16", said, ("graphs", ">", 0), ("unread", "==", graphs), ("repeat", "==", graphs),
        ("clones run", ">", 0), ("wrong", "==", 0), ("replays", ">", 0), ("captures beside", ">", 0),
        ("sizes with two tactics", "==", 0), ("off", "<=", "CUTLASS off"), **numbers,
        told={key: value for key, value in found.items() if key != "planted"},
    )  # fmt: skip
    told = dict(found.get("planted", {}))
    if told.get("a tactic that changes") == ["no other tactic could be run"]:
        told["a tactic that changes"] = []
    told.setdefault("a word that is read", [])
    if not told.pop("freed", 0):
        told["weights that move"] = []
    spoilt(judge, "CUTLASS MoE", told)


def server(judge: Judge, name: str) -> None:
    """The server's replies are as fitted."""
    if judge.missing("server", name, name):
        return
    found = judge.pool.json(name) or {}
    ways = {key: found.get(key, {}) for key in ("whole", "streamed", "many at once")}
    said = ", ".join(
        f"{key}: {one.get('asked', 0)} replies, {one.get('wrong')} not as fitted, {one.get('pieces')} pieces"
        for key, one in ways.items()
    )
    numbers = {"exit": found.get("exit"), "told": found}
    demands: list[Demand] = [("exit", "==", 0)]
    for key, one in ways.items():
        numbers |= {f"{key}: {count}": one.get(count) for count in ("asked", "wrong", "pieces")}
        demands += [(f"{key}: asked", ">", 0), (f"{key}: wrong", "==", 0)]
        if key != "whole":
            demands.append((f"{key}: pieces", ">", one.get("asked", 0)))
    judge.add("server", name, f"{said}, exit {found.get('exit')}", *demands, **numbers)
