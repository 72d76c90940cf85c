"""The task that computes a roof."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, put


@task(
    help={
        "model": "gpt-oss-120b, gpt-oss-20b, or the path of a config.json of the family",
        "layers": "held in MXFP4: all, or some of moe, qkv, o, lm_head with commas between",
        "kv": "fp8 or bf16",
        "context": "tokens in the KV cache",
        "tokens": "verified in one step; 1 is plain decoding",
        "kernel": "marlin or gemm: count that kernel's padding of the experts; none: leave it out",
        "bandwidth": "GB/s of the memory",
        "json": JSON,
    }
)
def roofline(
    _: Context,
    model: str = "gpt-oss-120b",
    layers: str = "all",
    kv: str = "fp8",
    context: int = 2048,
    tokens: int = 1,
    kernel: str = "none",
    bandwidth: float = 273.0,
    json: bool = False,
) -> None:
    """Compute the bytes that one token reads, and the tokens a second that memory allows (predicted)."""
    from sparkforge.core.console import mib, table
    from sparkforge.serving.roofline import roofline as computed

    found = computed(
        model, layers=layers, kv=kv, context=context, tokens=tokens, kernel=kernel, bandwidth=bandwidth * 1e9
    )
    if json:
        put(found)
        return
    rows = [(name, mib(size), f"{size / found.total:.1%}") for name, size in found.bytes.items()]
    print(table(("component", "bytes a step", "share"), [*rows, ("all", mib(found.total), "")]))
    print(f"\n{found.model}: {found.parameters / 1e9:.2f} billion parameters; MXFP4: {', '.join(found.layers)}")
    print(f"at most {found.roof:.1f} tok/s at {bandwidth:g} GB/s (predicted; context {context}, KV {kv})")
    if tokens > 1:
        print(f"a step must yield {found.break_even:.2f} tokens to read no more bytes a token than plain decoding")


@task(help={"json": JSON})
def reported(_: Context, json: bool = False) -> None:
    """List what others reported of gpt-oss-120b on a Spark, each under the roof of its configuration."""
    from sparkforge.core.console import table
    from sparkforge.results.reported import every

    found = every()
    if json:
        put(found)
        return
    rows = []
    for one in found:
        share = f"{one.decode / one.limit:.0%}" if one.decode and one.limit else ""
        decode = f"{one.decode:g}" if one.decode else ""
        rows.append((one.date, one.engine, one.configuration, decode, share, one.source))
    print(table(("date", "engine", "configuration", "tok/s", "of roof", "source"), rows))
    print("\nReported by others, not measured here. The caveats of each stand in results/reported/.")
