"""What an image says about itself: labels for registries and engines, and the same facts as a file in the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sparkforge.core.arch import Arch
from sparkforge.core.platforms import AMD64, Platform

OCI = "org.opencontainers.image."
OURS = "dev.sparkforge."
NO_MODULES = "none"  # label of an image for SM12x that compiles FlashInfer's modules when it is first started
PARTS_LEFT_OUT = f"{OURS}parts-left-out"  # parts of profiles that the image refuses, for lack of their modules
REPOSITORY = "localhost/sparkforge"
_SM12X = 12


class UpstreamFacts(msgspec.Struct, frozen=True):
    """One upstream as it is in an image.

    Attributes:
        release: its version.
        commit: the git commit of its pin.
        tree: git tree id of pin and series.
        series: sha256 of the series.
        wheel: sha256 of the installed wheel.
        package: distribution that is installed.
    """

    release: str
    commit: str
    tree: str
    series: str
    wheel: str
    package: str


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an image is made from, and the words of its labels.

    Attributes:
        stack: name of the stack.
        target: serve or cpu.
        platform: as linux/arm64.
        archs: as 12.1f.
        upstreams: by name.
        kernels: sha256 of the kernel library, "" for none.
        aot: key of the set of FlashInfer's modules that were compiled ahead of time, `none` for an image without them,
            "" for one that needs none.
        aot_modules: sha256 of each of them.
        aot_left_out: modules that are not in it, and why; `*` stands for all of them.
        parts_left_out: parts of profiles that cannot be turned on, with the modules that they lack.
        lock: sha256 of the runtime lock.
        base: flavor of the base, bootstrap or ngc.
        base_name: what the base was made from: a registry's reference, or the local tag.
        base_digest: `sha256:...` of it.
        build: key of everything above; names the caches.
        version: of this project.
        revision: git commit of the checkout, "" where it is none.
        created: RFC 3339 time.
        source: URL of this project's repository, "" where it has none.
        test_only: no machine of the platform has the GPU.
    """

    stack: str
    target: str
    platform: str
    archs: Sequence[str]
    upstreams: Mapping[str, UpstreamFacts]
    kernels: str
    lock: str
    base: str
    base_name: str
    base_digest: str
    build: str
    version: str
    revision: str
    created: str
    source: str = ""
    test_only: bool = False
    aot: str = ""
    aot_modules: Mapping[str, str] = {}
    aot_left_out: Mapping[str, str] = {}
    parts_left_out: Mapping[str, Sequence[str]] = {}


def test_only(target: str, platform: Platform, archs: Sequence[Arch]) -> bool:
    """Whether no machine can serve from this image: a Spark's SM12x comes with arm64 only."""
    return target == "serve" and platform == AMD64 and all(arch.major == _SM12X and arch.minor for arch in archs)


def tag(stack: str, target: str, platform: Platform, archs: Sequence[Arch]) -> str:
    """Name of an image: stack, target, archs and platform, and that it is for tests where it is.

    >>> from sparkforge.core.platforms import ARM64
    >>> tag("vllm-0.21", "serve", ARM64, [Arch(12, 1, "f")])
    'localhost/sparkforge:vllm-0.21-serve-12.1f-arm64'
    """
    words = [stack, target, *(arch.text for arch in archs), platform.debian]
    if test_only(target, platform, archs):
        words.append("test-only")
    return f"{REPOSITORY}:{'-'.join(words)}"


def labels(facts: ImageFacts) -> dict[str, str]:
    """Labels of an image; one without a value is left out."""
    vllm = facts.upstreams.get("vllm")
    title = f"Sparkforge {facts.stack} {facts.target}" + (" (test only)" if facts.test_only else "")
    said = {
        f"{OCI}title": title,
        f"{OCI}description": "vLLM with a patch series and kernels for NVIDIA SM12x, gpt-oss on a DGX Spark",
        f"{OCI}source": facts.source,
        f"{OCI}url": facts.source,
        f"{OCI}documentation": f"{facts.source}#readme" if facts.source else "",
        f"{OCI}revision": facts.revision,
        f"{OCI}version": "-".join([facts.version, *([vllm.release] if vllm else [])]),
        f"{OCI}created": facts.created,
        f"{OCI}licenses": "Apache-2.0",
        f"{OCI}vendor": "Sparkforge",
        f"{OCI}base.name": facts.base_name,
        f"{OCI}base.digest": facts.base_digest,
        f"{OURS}stack": facts.stack,
        f"{OURS}target": facts.target,
        f"{OURS}platform": facts.platform,
        f"{OURS}archs": ",".join(facts.archs),
        f"{OURS}base": facts.base,
        f"{OURS}build": facts.build,
        f"{OURS}kernels": facts.kernels,
        f"{OURS}aot": facts.aot,
        PARTS_LEFT_OUT: ",".join(facts.parts_left_out),
        f"{OURS}lock": facts.lock,
        f"{OURS}test-only": "true" if facts.test_only else "",
    }
    for name, upstream in facts.upstreams.items():
        for key, value in msgspec.to_builtins(upstream).items():
            said[f"{OURS}{key}.{name}"] = value
    if vllm:
        said["ai.vllm.build.commit"] = vllm.commit
    return {name: value for name, value in said.items() if value}


def manifest(facts: ImageFacts) -> dict[str, Any]:
    """The content of the image's manifest.json: the facts and the labels."""
    said: dict[str, Any] = msgspec.to_builtins(facts)
    return {**said, "labels": labels(facts)}
