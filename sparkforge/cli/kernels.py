"""Tasks on our own kernels."""

from __future__ import annotations

import sys
from pathlib import Path

from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, put
from sparkforge.core import console, proc
from sparkforge.core.arch import parse_archs
from sparkforge.core.errors import CheckFailed
from sparkforge.core.paths import ROOT
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store

_ARCH = "architectures, such as 12.1f or 12.1f,9.0"
_PLATFORM = "linux/amd64 or linux/arm64; by default this machine's"


@task(help={"arch": _ARCH, "platform": _PLATFORM, "json": JSON})
def build(_: Context, arch: str = "12.1f", platform: str = "", json: bool = False) -> None:
    """Compile our kernels into one library, from hashed wheels of the CUDA toolchain."""
    from sparkforge.inputs.kernel_list import load_kernels
    from sparkforge.kernels import library as kernels

    console.quiet(on=json)
    made = kernels.build(Store.open(), load_kernels(), parse_archs(arch), _platform(platform))
    console.say(
        f"{made.library}: {made.library.stat().st_size} bytes for {made.platform.oci}, "
        + ("nothing to compile" if made.cached else f"{made.cpu_seconds:.1f} CPU s")
    )
    if json:
        archs, platform = [one.text for one in made.archs], made.platform.oci
        put(
            {
                "library": str(made.library),
                "sha256": made.sha256,
                "archs": archs,
                "platform": platform,
                "cached": made.cached,
            }
        )


@task(
    help={"arch": _ARCH, "platform": _PLATFORM, "library": "audit this file instead of our own library", "json": JSON}
)
def audit(_: Context, arch: str = "12.1f", platform: str = "", library: str = "", json: bool = False) -> None:
    """Audit the compiled code: ELF machine, architectures, block-scaled MMA, traps."""
    from sparkforge.inputs import toolchain
    from sparkforge.inputs.kernel_list import load_kernels
    from sparkforge.inspect.kernel_audit import COLUMNS
    from sparkforge.inspect.kernel_audit import audit as read
    from sparkforge.kernels import library as kernels

    console.quiet(on=json)
    store, archs, where = Store.open(), parse_archs(arch), _platform(platform)
    declared = load_kernels()
    path = Path(library) if library else kernels.build(store, declared, archs, where).library
    report = read(
        path,
        archs=archs,
        platform=where,
        kernels={} if library else declared.kernels,
        inspector=toolchain.inspector(store),
    )
    if json:
        put(report.as_json())
    else:
        print(console.table(COLUMNS, report.rows()))
    for finding in report.findings:
        console.say(
            f"{finding.severity.value}: [{finding.rule}] {finding.says}"
            + (f"\n  do:  {finding.do}" if finding.do else "")
        )
    if not report.passed:
        raise CheckFailed(f"{path} failed the audit")
    console.say(f"{path}: sound")


@task
def test(_: Context) -> None:
    """Run the kernels' tests: numerics on the CPU, compiled code with nvcc, values on a GPU if there is one."""
    words = [sys.executable, "-m", "pytest", "kernels/tests", "tests/kernels"]
    if proc.run(words, cwd=ROOT, stream=True, check=False).code:
        raise CheckFailed("a kernel test failed; see above")


def _platform(text: str) -> Platform:
    return Platform.parse(text) if text else Platform.host()
