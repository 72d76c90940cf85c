"""One smoke run: start, wait for the first streamed token, check, stop, remove; then again as an unknown user."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparkforge.core.console import say
from sparkforge.core.errors import BadInput
from sparkforge.core.store import Store
from sparkforge.engine import choose, gpu
from sparkforge.image.labels import OURS
from sparkforge.smoke import checks
from sparkforge.smoke.checks import Check, CheckVerdict, check
from sparkforge.smoke.client import Client
from sparkforge.smoke.container_site import ImageSite
from sparkforge.smoke.regret import regret
from sparkforge.smoke.report import SmokeReport
from sparkforge.smoke.sites import Server, Site, last_lines
from sparkforge.smoke.tiny.make import make
from sparkforge.smoke.waiting import first_token

NAME = "smoke"
_TOKENS = 32
_STRANGER = "12345:0"  # group 0 is what OpenShift and `--user N:0` give; the number is in no passwd file

TINY_FLAGS = (
    "--dtype=bfloat16",
    "--max-model-len=1024",
    "--max-num-seqs=4",
    # The first forward pass has as many tokens as a batch may have; 256 instead of 2048 saves two slow cores 25 s.
    "--max-num-batched-tokens=256",
    "--enforce-eager",
    # For model_type gpt_oss vLLM fetches harmony's vocabulary from the network before it serves. Only the chat and
    # responses endpoints look at the type: the model is chosen by its architecture.
    '--hf-overrides={"model_type": "gpt_oss_without_harmony"}',
    # The parser that vLLM takes for gpt-oss wants harmony too; this one takes the whole text as the answer.
    "--reasoning-parser=deepseek_v3",
)
TINY_GPU_FLAGS = ("--gpu-memory-utilization=0.2",)
ENV = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB; without it vLLM's CPU backend takes half of the memory
}


@dataclass(frozen=True)
class Bounds:
    """How long things may take, in seconds.

    Attributes:
        start: from the start to the first streamed token.
        silence: of a request, once the server is ready.
        stop: from SIGTERM to the end.
    """

    start: float = 1200.0
    silence: float = 120.0
    stop: float = 60.0


def image_site(store: Store, image: str, engine: str = "auto", *, target: str = "") -> ImageSite:
    """Where servers of an image start; those of target `serve` get the GPUs.

    Args:
        store: keeps what is known of engines.
        image: tag.
        engine: docker, buildah or auto.
        target: of the image; empty takes it from the image's label.

    Raises:
        EnvironmentLacks: no engine works, or the image needs a GPU and this machine has none.
        BadInput: no engine holds the image.
    """
    if target == "serve":
        gpu.demand(image)
    found = choose.find(store, image, engine)
    gpus = found.labels(image).get(f"{OURS}target", target) == "serve"
    if gpus:
        gpu.demand(image)
    return ImageSite(found, image, gpus=gpus)


def smoke(
    site: Site,
    *,
    model: Path | None = None,
    store: Store | None = None,
    flags: Sequence[str] = (),
    bounds: Bounds | None = None,
) -> SmokeReport:
    """Start a server, make it speak, check what it says, stop and remove it; an image also as uid 12345.

    Args:
        site: where servers start: `image_site(...)`, or `VenvSite(folder)`.
        model: directory of weights; None makes a tiny random gpt-oss and compares its tokens with transformers'.
        store: keeps that model; None opens the user's.
        flags: more words for `vllm serve`.
        bounds: how long things may take.

    Raises:
        BadInput: `model` is not a directory.
    """
    if model is not None and not model.is_dir():
        raise BadInput(f"{model} is not a directory", do="--model DIRECTORY, or none for a tiny random gpt-oss")
    begun = time.monotonic()
    limits = bounds or Bounds()
    weights = model or make(store or Store.open())
    words = [f"--served-model-name={NAME}"]
    if model is None:
        words += [*TINY_FLAGS, *(TINY_GPU_FLAGS if isinstance(site, ImageSite) and site.gpus else ())]
    words += flags
    run = _Run(site, weights, words, ENV, limits)
    found, log = run.once(user=None, tiny=model is None)
    if site.users:
        more, more_log = run.once(user=_STRANGER, tiny=False)
        found += [replace(one, name=f"{one.name} as {_STRANGER.partition(':')[0]}") for one in more]
        log = log or more_log
    else:
        found.append(Check("as another user", CheckVerdict.SKIPPED, "a virtual environment serves as its caller"))
    report = SmokeReport(
        site.subject,
        "tiny gpt-oss" if model is None else str(model),
        tuple(found),
        time.monotonic() - begun,
        log,
    )
    if not report.passed:
        say(f"last lines of the server:\n{report.log}")
    say(f"  {report.summary}")
    return report


@dataclass(frozen=True)
class _Run:
    site: Site
    model: Path
    flags: Sequence[str]
    env: Mapping[str, str]
    bounds: Bounds

    def once(self, *, user: str | None, tiny: bool) -> tuple[list[Check], str]:
        """Checks of one server from start to end, and the end of its log if one failed."""
        as_whom = f" again as unknown user {user}" if user else ""
        say(f"  starting {self.site.subject}{as_whom}, first token within {self.bounds.start:.0f} s ...")
        begun = time.monotonic()
        server = self.site.start(self.model, self.flags, self.env, user=user)
        try:
            found = [check("first token", lambda: first_token(server, NAME, begun, self.bounds.start))]
            _tell(found[-1])
            if found[0].verdict is CheckVerdict.PASSED:
                for one in self._spoken(server, tiny=tiny, stranger=user is not None):
                    found.append(one)
                    _tell(one)
            failed = any(one.verdict is CheckVerdict.FAILED for one in found)
            return found, last_lines(server.logs()) if failed else ""
        finally:
            server.remove()

    def _spoken(self, server: Server, *, tiny: bool, stranger: bool) -> list[Check]:
        client = Client(server.base, NAME, self.bounds.silence)
        found = [checks.whole(client, _TOKENS)]
        if not stranger:
            found += [checks.streamed(client, _TOKENS), checks.repeated(client, _TOKENS)]
        if self.site.users:
            found.append(checks.kept(server.unwritten()))
        if tiny:
            found += [checks.chatted(client, _TOKENS), regret(client, server.reference, model=server.model)]
        begun = time.monotonic()
        code = server.stop(grace=self.bounds.stop)
        seconds = time.monotonic() - begun
        return [*found, checks.stopped(code, seconds, server.logs(), bound=self.bounds.stop)]


def _tell(one: Check) -> None:
    say(f"    {one.name}: {one.verdict.value}: {one.said}")
