"""What is demanded of the fitted model's engines, of the graphs' record, of CUTLASS in graphs and of the server."""

from __future__ import annotations

import numpy as np
from judge import LOGIT_LIMIT, LOGIT_LIMIT_FP8, Judge, verdict
from plan import LARGE_FAULTS as LARGE

# The margin over the root mean square by which rounding moves the distance of the two likeliest tokens.
SOUND = 6.0


def fitted(judge: Judge) -> None:
    """The fit itself: every wanted token leads by the margin, in every pass that it was made for."""
    if judge.missing("sharp", "lm_head fitted", "sharp"):
        return
    found = judge.pool.json("sharp")
    right = found["least"] >= found["margin"]
    said = f"{found['places']} places, least lead {found['least']:.3f} spreads after {found['rounds']} rounds"
    judge.add("sharp", "lm_head fitted", verdict(right), said, **found)


def _as_many_as_uniform(told: dict, steps: dict) -> tuple[bool, str]:
    """Whether graphs were replayed exactly where the mode says so.

    A graph of a whole model is for decode alone: every request with as many tokens, one and the drafts. With n-gram a
    request for which no draft is found has one token: then no such graph can be replayed, and where pieces are not
    captured either, none is.
    """
    mode = str(told.get("graphs", "")).rsplit(".", 1)[-1]
    keys = ("replays FULL", "replays PIECEWISE", "uniform", "other small")
    full, pieces, uniform, small = (steps.get(key, 0) for key in keys)
    said = f"{full} whole, {pieces} in pieces, {uniform} uniform batches, {mode}"
    wanted = {
        "NONE": full == pieces == 0,
        "PIECEWISE": full == 0 and (pieces > 0) == (uniform + small > 0),
        "FULL_DECODE_ONLY": full == uniform > 0 and pieces == 0,
        "FULL_AND_PIECEWISE": full == uniform > 0 and (pieces > 0) == (small > 0),
    }
    return wanted.get(mode, False), said


def _summed(told: dict) -> dict:
    keys = {key for step in ("main", "mixed") for key in told.get(step, {})} - {"replies", "seconds", "largest"}
    return {key: sum(told.get(step, {}).get(key, 0) for step in ("main", "mixed")) for key in keys}


def known(judge: Judge, label: str, job: str, base: str, wanted: list[list[int]], *, section: str = "sharp") -> None:
    """Every token is the wanted one; graphs are replayed where they can be; logits stay near those of eager."""
    if judge.missing(section, label, job, "sharp"):
        return
    told = judge.pool.json(job)
    replies = judge.replies(job, "main", "mixed")
    off = sum(x != y for a, b in zip(replies, wanted, strict=True) for x, y in zip(a, b, strict=True))
    equal = sum(a == b for a, b in zip(replies, wanted, strict=True))
    steps = _summed(told)
    where, said = _as_many_as_uniform(told, steps)
    drafted = f", {steps['drafted']} drafted" if steps.get("drafted") else ""
    conditions = [equal == len(wanted), where, "ngram" not in job or steps.get("drafted", 0) > 0]
    if "Q" in job.split("."):
        conditions.append(told.get("xqa", 0) > 0)
        said += f", {told.get('xqa', 0)} calls of XQA"
    numbers = {
        "replies": len(wanted),
        "equal": equal,
        "tokens": sum(map(len, wanted)),
        "other tokens": off,
        "steps": steps,
    }
    moved = _moved(judge, job, base)
    said = f"{equal} of {len(wanted)} replies equal{drafted}, {said}"
    if moved:
        conditions += [
            moved["lead rms"] * SOUND <= moved["least lead"],
            moved["rms"] <= (LOGIT_LIMIT_FP8 if "fp8" in job else LOGIT_LIMIT),
        ]
        said += (
            f"; least lead {moved['least lead']:.2f}, moved {moved['lead rms']:.3f} rms, {moved['lead most']:.2f} most"
        )
    judge.add(section, label, verdict(*conditions), said, **numbers, logits=moved)


def _moved(judge: Judge, job: str, base: str) -> dict | None:
    """By how much logits and the lead of the likeliest differ from the base's, in spreads."""
    mine, theirs = judge.pool.arrays(job), judge.pool.arrays(base)
    keys = sorted(
        key for key in mine if key.endswith(".logits") and key in theirs and key.split(".")[0] in ("main", "mixed")
    )
    if not keys or any(mine[key].shape != theirs[key].shape for key in keys):
        return None
    spread = judge.pool.json("sharp")["spread"]
    a, b = (np.concatenate([arrays[key] for key in keys]).astype(np.float64) / spread for arrays in (mine, theirs))
    lead, other = a[:, 0] - a[:, 1], b[:, 0] - b[:, 1]
    return {
        "places": len(a), "least lead": float(lead.min()), "rms": float(np.sqrt(((a - b)[:, 0] ** 2).mean())),
        "most": float(np.abs((a - b)[:, 0]).max()), "lead rms": float(np.sqrt(((lead - other) ** 2).mean())),
        "lead most": float(np.abs(lead - other).max()),
    }  # fmt: skip


def planted(judge: Judge, job: str, wanted: list[list[int]]) -> None:
    """Each fault changes tokens, and without it they are as before."""
    if judge.missing("sharp", "faults planted", job):
        return
    found = (judge.pool.json(job) or {}).get("planted", {})
    changed = {
        name: sum(x != y for a, b in zip(replies, wanted, strict=True) for x, y in zip(a, b, strict=True))
        for name, replies in found.get("faults", {}).items()
    }
    for kind in sorted({name.rsplit(",", 1)[0] for name in changed}):
        layers = [count for name, count in changed.items() if name.startswith(kind + ",")]
        said = f"tokens changed, by layer: {', '.join(map(str, layers))} of {sum(map(len, wanted))}"
        # A large one is seen in every layer; a small one may hide below the margin in some, not in all.
        judge.add(
            "sharp",
            f"fault: {kind}",
            verdict(*(count > 0 for count in layers) if kind in LARGE else [any(layers)]),
            said,
            changed=layers,
        )
    healed = found.get("healed") == wanted
    judge.add(
        "sharp", "faults taken back", verdict(bool(changed), healed), f"{len(changed)} faults, then as before: {healed}"
    )


def soak(judge: Judge, name: str, least: dict[str, int] | None = None) -> None:
    """One soak on the fitted model: nothing failed, every reply is the wanted one, and `least` was had of each count."""
    if judge.missing("soak", name, name):
        return
    told = judge.pool.json(name) or {}
    found = told.get("soak", {"failed": "wrote nothing"})
    numbers = {key: value for key, value in found.items() if key != "kept"}
    where, graphs = _as_many_as_uniform(told, found)
    said = f"{found.get('compositions', 0)} batches, {found.get('mixed', 0)} mixed, {found.get('equal', 0)} replies equal, "
    said += f"{found.get('differing', 0)} not, {graphs}"
    if found.get("failed"):
        said = f"{found['failed'][:80]}; {said}"
    right = [
        "Q" not in name.split(".") or told.get("xqa", 0) > 0,
        found.get("failed") is None,
        where,
        found.get("equal", 0) > 0,
        found.get("differing", 1) == 0,
    ]
    for count, wanted in (least or {}).items():
        right.append(found.get(count, 0) >= wanted)
        if not right[-1]:
            said = f"{found.get(count, 0)} {count} of {wanted}; {said}"
    kept = [{"reply": one["reply"], "prompt": len(one["prompt"])} for one in found.get("kept", [])[:4]]
    judge.add("soak", name, verdict(*right), said, **numbers, differing_replies=kept)


def captured(judge: Judge, name: str) -> None:
    """Everything that the graphs hold is as it was at capture; and what was spoilt was seen."""
    if judge.missing("captured", name, name):
        return
    told = judge.pool.json(name) or {}
    found = told.get("recorded", {})
    counts, soaked = found.get("counts", {}), found.get("soak", {})
    replays = sum(value for key, value in counts.items() if key.startswith("replays ") and "not" not in key)
    beside = sum(value for key, value in counts.items() if key.startswith("captures beside"))
    wrong = {key: value for key, value in counts.items() if key.startswith("wrong")}
    said = (
        f"{counts.get('captured anew', 0)} graphs, {sum(found.get('listing', {}).get('nodes', {}).get(k, 0) for k in ('kernel', 'memcpy', 'memset'))} "
        f"nodes, {replays} replays, {beside} captured beside, wrong: {wrong or 'nothing'}"
    )
    right = [
        not wrong, replays > 0, beside > 0, counts.get("captured anew", 0) > 0, soaked.get("differing", 1) == 0,
        soaked.get("failed", "did not run") is None,
    ]  # fmt: skip
    judge.add("captured", name, verdict(*right), said, **{key: value for key, value in found.items() if key not in ("planted", "soak")},
              soak={key: value for key, value in soaked.items() if key != "kept"})  # fmt: skip
    spoilt(judge, name, found.get("planted", {}))


def spoilt(judge: Judge, name: str, told: dict) -> None:
    """Of what was planted, everything must have been seen, and nothing of what was not."""
    quiet = told.get("nothing") == []
    seen = {key: bool(value) for key, value in told.items() if key not in ("nothing", "freed")}
    said = f"nothing planted: {'silent' if quiet else told.get('nothing')}; " + ", ".join(
        f"{key}: {'seen' if value else 'NOT SEEN'}" for key, value in seen.items()
    )
    judge.add("captured", f"{name}, defects planted", verdict(quiet, len(seen) > 0, *seen.values()), said, planted=told)


def cutlass(judge: Judge) -> None:
    """The CUTLASS MoE in graphs."""
    if judge.missing("captured", "CUTLASS MoE in BF16", "cutlass"):
        return
    found = judge.pool.json("cutlass")
    counts, holes = found.get("counts", {}), found.get("holes", {})
    unread = holes.get("graphs whose outputs stay with all holes scribbled", 0)
    said = (
        f"{counts.get('replays', 0)} replays, {counts.get('captures beside', 0)} captured beside, {found.get('wrong')} wrong, "
        f"{holes.get('words with holes')} words with holes, unread in {unread} of {holes.get('graphs')} graphs, "
        f"{len(found.get('differing tactics', [1]))} sizes with two tactics, off by {found['worst']['reference']:.4f} (limit {found['limit']})"
    )
    right = [
        holes.get("graphs", 0) > 0, unread == holes.get("graphs") == holes.get("graphs whose outputs repeat"),
        holes.get("clones run", 0) > 0,
        found.get("wrong") == 0, counts.get("replays", 0) > 0, counts.get("captures beside", 0) > 0,
        not found.get("differing tactics", [1]), max(found["worst"].values()) <= found["limit"],
    ]  # fmt: skip
    judge.add(
        "captured",
        "CUTLASS MoE in BF16",
        verdict(*right),
        said,
        **{key: value for key, value in found.items() if key != "planted"},
    )
    told = dict(found.get("planted", {}))
    if told.get("a tactic that changes") == ["no other tactic could be run"]:
        told["a tactic that changes"] = []
    told.setdefault("a word that is read", [])
    if not told.pop("freed", 0):
        told["weights that move"] = []
    spoilt(judge, "CUTLASS MoE", told)


def server(judge: Judge, name: str) -> None:
    """The server says what LLM says."""
    if judge.missing("server", name, name):
        return
    found = judge.pool.json(name) or {}
    ways = {key: found[key] for key in ("whole", "streamed", "many at once") if key in found}
    said = ", ".join(
        f"{key}: {one['asked']} replies, {one['wrong']} wrong, {one['pieces']} pieces" for key, one in ways.items()
    )
    right = [len(ways) == 3, *(one["wrong"] == 0 and one["asked"] > 0 for one in ways.values()), found.get("exit") == 0]
    right.append(all(one["pieces"] > one["asked"] for key, one in ways.items() if key != "whole"))
    judge.add("server", name, verdict(*right), f"{said}, exit {found.get('exit')}", **found)
