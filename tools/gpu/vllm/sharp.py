"""A gpt-oss that knows its replies by heart, with a margin: eager and graphs must then agree on every token.

    python sharp.py FOLDER JSON MARGIN HIDDEN.npz...

A random model has near ties, where the order of additions decides; no demand for equal tokens is sound on it. Here the
layers stay those of the random model, and lm_head alone is fitted: on what the layers make of each prompt and its
reply (chosen beforehand, at random), until the reply's token is the likeliest at each place by a margin in spreads, the
spread being that of a place's logits, and after MXFP4 has rounded lm_head. What the layers make of a text does not
depend on lm_head, so one pass is enough. Engines with BF16 and with FP8 KV give a pass each: the margin holds in all.

Every layer still decides: lm_head reads 512 numbers to which each layer adds, and tells thousands of texts apart by
them. That a fault in any layer's sinks, experts or dense weights changes tokens is not argued but shown, by planting it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import bound
import chats
import exact
import numpy as np
import torch
from plan import Prompts
from safetensors.torch import load_file, save_file

SPREAD = 2.5
VOCAB = 2048
LEAST_ROUNDS, ROUNDS = 100, 600


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """The values that MXFP4 keeps, as the series' quantizer does: exact in BF16."""
    return torch.cat([exact.dequantize(*exact.quantize(rows.bfloat16())).float() for rows in weight.split(512)])


def margins(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """By how much the wanted token leads the next at each place; negative where it does not lead."""
    mine = logits.gather(1, wanted[:, None]).squeeze(1)
    return mine - logits.scatter(1, wanted[:, None], -torch.inf).max(dim=1).values


def fit(hidden: torch.Tensor, wanted: torch.Tensor, start: torch.Tensor, margin: float) -> tuple[torch.Tensor, dict]:
    """An lm_head [V, H] that says `wanted` [N] for each of `hidden` [N, H] by `margin` spreads, after MXFP4 rounding.

    Adam on the squared distance from the margin, from both sides: a token that led by far would hide faults. Rounding
    moves every logit a little, so where the rounded weights lack margin more is asked for.
    """
    weight, first, second = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    spread = (hidden @ start.T).std(dim=1).mean()
    soft, best, told = spread / 4, None, {"least": -torch.inf}
    need = torch.full((len(wanted),), 1.1 * margin, device=hidden.device) * spread
    for number in range(1, ROUNDS + 1):
        logits = hidden @ weight.T
        mine = logits.gather(1, wanted[:, None]).squeeze(1)
        others = logits.scatter(1, wanted[:, None], -torch.inf) / soft
        short = (need - (mine - soft * torch.logsumexp(others, dim=1))) / len(wanted)
        if number % 10 == 0 and number >= LEAST_ROUNDS:
            kept = rounded(weight)
            lead = margins(hidden @ kept.T, wanted)
            least = float(lead.min() / spread)
            if least > told["least"]:
                best, told = kept, {"rounds": number, "least": least, "spread": float(spread)}
            if least >= margin:
                return kept, told
            need = torch.where(lead < 1.05 * margin * spread, need + 0.05 * spread, need)
        pull = torch.softmax(others, dim=1) * short[:, None]
        pull.scatter_(1, wanted[:, None], -short[:, None])
        slope = pull.T @ hidden
        first.mul_(0.9).add_(slope, alpha=0.1)
        second.mul_(0.99).addcmul_(slope, slope, value=0.01)
        rate = 0.02 / (1 + number / 30)
        weight -= rate * (first / (1 - 0.9**number)) / ((second / (1 - 0.99**number)).sqrt() + 1e-12)
    if told["least"] < margin / 2:
        raise SystemExit(f"lm_head was not found: {told}")
    return best, told  # the check of the margin says so


def write(folder: Path, name: str, head: torch.Tensor) -> None:
    """FOLDER/NAME/mxfp4: the files of FOLDER/mxfp4, with another lm_head."""
    source, home = folder / "mxfp4", folder / name / "mxfp4"
    home.mkdir(parents=True, exist_ok=True)
    where = json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]
    for path in source.iterdir():
        if path.name != where["lm_head.weight"]:
            (home / path.name).unlink(missing_ok=True)
            (home / path.name).symlink_to(path.resolve())
    tensors = load_file(source / where["lm_head.weight"])
    tensors["lm_head.weight"] = head.bfloat16().cpu().contiguous()
    save_file(tensors, home / where["lm_head.weight"])
    chats.write(home, VOCAB)


def main(folder: Path, out: Path, margin: float, seen: list[Path]) -> None:
    """Fit and write FOLDER/STEM, STEM being that of the JSON; say how well it went."""
    begun = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prompts = Prompts(VOCAB).with_chats(VOCAB)
    wanted = torch.tensor([token for one in prompts.sharp() for token in one["reply"]], device=device)
    passes = [torch.tensor(np.load(path)["hidden"], device=device) for path in seen]
    if any(len(one) != len(wanted) for one in passes):
        raise SystemExit(f"{len(wanted)} places wanted, {[len(one) for one in passes]} seen")
    hidden = torch.cat(passes)
    generator = torch.Generator().manual_seed(20261121)
    start = torch.randn(VOCAB, hidden.shape[1], generator=generator) * SPREAD / hidden.shape[1] ** 0.5
    head, told = fit(hidden, wanted.repeat(len(passes)), start.to(device), margin)
    for path, one in zip(seen, passes, strict=True):
        lead = margins(one @ head.T, wanted) / told["spread"]
        apart = (one - passes[0]).norm(dim=1) / passes[0].norm(dim=1)
        told[path.stem] = {
            "least": float(lead.min()), "median": float(lead.median()),
            "apart from the first": {"mean": float(apart.mean()), "most": float(apart.max())},
        }  # fmt: skip
    write(folder, out.stem, head)
    out.write_text(json.dumps({"places": len(wanted), "seconds": time.monotonic() - begun, "margin": margin, **told}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), [Path(one) for one in sys.argv[4:]])
    bound.tell()
