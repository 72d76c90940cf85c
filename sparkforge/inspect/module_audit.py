"""The audit of FlashInfer's modules: does the machine code of every kernel hold what SM12x needs?

A compiler's status 0 proves nothing here: for plain 12.1 it drops block-scaled MMAs without a word, and the kernel then
prints an error instead of computing. Modules are large, so each cubin is taken out and disassembled by itself.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from sparkforge.core.arch import SM12X, Arch
from sparkforge.core.platforms import Platform
from sparkforge.inspect import module_facts as facts
from sparkforge.inspect.elf import read_elf
from sparkforge.inspect.findings import Finding, errors, host_side, require
from sparkforge.inspect.kernel_names import Gemm, gemm
from sparkforge.inspect.sass import DeviceFunction, cubins, read_cubin

HEAD = ("module", "arch", "cubins", "kernels", "instructions", "block-scaled MMA", "other MMA", "TMA loads", "traps")
# What CUTLASS's atoms print instead of computing where the target does not have their instruction (cute/config.hpp).
ARCH_TRAP = b"Arch conditional MMA instruction used"
TMA_LOAD, PDL_WAIT, PDL_LAUNCH, FENCE = "UTMALDG", "ACQBULK", "PREEXIT", "MEMBAR"
KEPT = (TMA_LOAD, "UTMASTG", PDL_WAIT, PDL_LAUNCH, FENCE, "FENCE", "LDSM", "HMMA", "QMMA", "OMMA", "BPT")
MOE, XQA = "fused_moe_120", "xqa_"
# F-07 and the pin: each tile with the weights on N and on M, with both epilogues, for BF16 output.
WANTED = tuple(
    Gemm(a, b, (128, n, 128), finalize, "BF16")
    for n in (32, 64, 128)
    for a, b in (("FP8", "FP4"), ("FP4", "FP8"))
    for finalize in (False, True)
)


class KernelFamily(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels that differ in nothing that matters here.

    Attributes:
        name: of the GEMM, or the kernel's last identifier.
        kernels: how many.
        instructions: of all of them.
        mma: matrix instructions by opcode.
        block_scaled: how many of them are QMMA.SF or OMMA.SF, in the kernel that has fewest.
        tma_loads: UTMALDG, in the kernel that has fewest.
        pdl_waits: ACQBULK (griddepcontrol.wait), in the kernel that has fewest.
        traps: BPT.TRAP of all of them.
        registers: of the kernel that has most.
        stack: bytes to a thread, of the kernel that has most.
    """

    name: str
    kernels: int
    instructions: int
    mma: dict[str, int]
    block_scaled: int
    tma_loads: int
    pdl_waits: int
    traps: int
    registers: int
    stack: int


class AuditedModule(msgspec.Struct, frozen=True, kw_only=True):
    """One module.

    Attributes:
        name: of it.
        sha256: of the file.
        size: bytes.
        archs: that its machine code is for.
        cubins: how many.
        kernels: how many.
        instructions: of all of them.
        opcodes: of those in `KEPT`, how many.
        arch_traps: cubins that hold CUTLASS's message of a missing instruction.
        families: by name.
        findings: what is wrong.
    """

    name: str
    sha256: str
    size: int
    archs: list[str]
    cubins: int
    kernels: int
    instructions: int
    opcodes: dict[str, int]
    arch_traps: int
    families: list[KernelFamily]
    findings: list[Finding]

    def row(self) -> tuple[object, ...]:
        """Under `HEAD`."""
        scaled = sum(count for family in self.families for opcode, count in family.mma.items() if ".SF" in opcode)
        other = sum(sum(family.mma.values()) for family in self.families) - scaled
        counts = (self.cubins, self.kernels, self.instructions, scaled, other, self.opcodes.get(TMA_LOAD, 0))
        return (self.name, ",".join(self.archs), *counts, sum(family.traps for family in self.families))


class ModuleAudit(msgspec.Struct, frozen=True, kw_only=True):
    """All modules of a folder, with the build that they came from."""

    key: str
    tree: str
    platform: str
    archs: list[str]
    versions: dict[str, str]
    modules: list[AuditedModule]
    passed: bool

    def demand(self, what: str) -> None:
        """Raise if there are findings.

        Raises:
            CheckFailed: names each module and its findings.
        """
        found = ((module.name, one) for module in self.modules for one in module.findings)
        require(what, found, do="invoke aot.build --arch 12.1f")


def audit(folder: Path, inspector: Path, *, say: Callable[[str], None] = lambda _: None) -> ModuleAudit:
    """Read every module of a folder.

    Args:
        folder: with `aot.json`.
        inspector: folder of cuobjdump and nvdisasm.
        say: takes a line on each module that was read.

    Raises:
        CheckFailed: a file cannot be read at all. What is wrong with its content is in the report.
    """
    built = facts.read(folder)
    archs = tuple(Arch.parse(text) for text in built.archs)
    platform = Platform.parse(built.platform)
    modules = []
    for one in built.modules:
        modules.append(read(folder / one.file, one, archs, platform, inspector))
        say(f"  {one.name}: {modules[-1].kernels} kernels, {len(modules[-1].findings)} findings")
    return ModuleAudit(
        key=built.key,
        tree=built.tree,
        platform=built.platform,
        archs=built.archs,
        versions=built.versions,
        modules=modules,
        passed=not any(errors(module.findings) for module in modules),
    )


def read(
    library: Path, said: facts.BuiltModule, archs: Sequence[Arch], platform: Platform, inspector: Path
) -> AuditedModule:
    """Read one module.

    Args:
        library: the file.
        said: what `aot.json` says of it.
        archs: devices' architectures that it must run on.
        platform: machine that it must be for.
        inspector: folder of cuobjdump and nvdisasm.

    Raises:
        CheckFailed: it cannot be read.
        ValueError: the name of a block-scaled kernel has a form that is not known here.
    """
    groups: dict[str, list[DeviceFunction]] = {}
    gemms: set[Gemm] = set()
    found_archs: list[Arch] = []
    count = arch_traps = 0
    with tempfile.TemporaryDirectory(prefix="sparkforge-audit-") as folder:
        for arch, cubin in cubins(library, inspector, Path(folder)):
            count += 1
            found_archs.append(arch)
            arch_traps += ARCH_TRAP in cubin.read_bytes()
            for function in read_cubin(cubin, arch, inspector):
                is_gemm = gemm(function.name)
                gemms |= {is_gemm} if is_gemm else set()
                name = is_gemm.text if is_gemm else function.short.partition("<")[0]
                groups.setdefault(name, []).append(function)
            cubin.unlink()
    families = [_family(name, functions) for name, functions in sorted(groups.items())]
    opcodes = sum((function.opcodes for functions in groups.values() for function in functions), Counter[str]())
    scaled = {each.text for each in gemms}
    return AuditedModule(
        name=said.name,
        sha256=said.sha256,
        size=said.size,
        archs=[arch.text for arch in sorted(set(found_archs))],
        cubins=count,
        kernels=sum(family.kernels for family in families),
        instructions=sum(family.instructions for family in families),
        opcodes={name: opcodes[name] for name in KEPT if opcodes[name]},
        arch_traps=arch_traps,
        families=families,
        findings=[
            *host_side(read_elf(library), platform, said.exports),
            *_archs(found_archs, archs),
            *_code(said.name, families, scaled, arch_traps, opcodes),
            *(
                Finding("tile", f"there is no kernel {one.text}")
                for one in WANTED
                if said.name == MOE and one not in gemms
            ),
        ],
    )


def _family(name: str, functions: Sequence[DeviceFunction]) -> KernelFamily:
    return KernelFamily(
        name=name,
        kernels=len(functions),
        instructions=sum(each.instructions for each in functions),
        mma=dict(sorted(sum((each.mma for each in functions), Counter[str]()).items())),
        block_scaled=min(each.block_scaled for each in functions),
        tma_loads=min(each.opcodes[TMA_LOAD] for each in functions),
        pdl_waits=min(each.opcodes[PDL_WAIT] for each in functions),
        traps=sum(each.traps for each in functions),
        registers=max(each.registers for each in functions),
        stack=max(each.stack + each.local for each in functions),
    )


def _archs(found: Sequence[Arch], wanted: Sequence[Arch]) -> Iterator[Finding]:
    has = ", ".join(sorted({code.text for code in found})) or "nothing"
    for arch in wanted:
        if not any(_runs(code, arch) for code in found):
            yield Finding("arch", f"no machine code that {arch.text} runs; there is code for {has}")
    for code in sorted(set(found)):
        if not any(_runs(code, arch) for arch in wanted):
            yield Finding("arch", f"{found.count(code)} of {len(found)} cubins are for {code.text}, which nobody runs")
        if code.major == SM12X and not code.suffix:
            yield Finding("family", f"code for {code.text}, without its family, cannot hold a block-scaled MMA")


def _runs(code: Arch, device: Arch) -> bool:
    """Whether a device runs a cubin natively (CUDA C++ Programming Guide, 5.1.2 and 5.1.3)."""
    if code.suffix == "a":
        return code.capability == device.capability
    return code.major == device.major and code.minor <= device.minor


def _code(
    module: str, families: Sequence[KernelFamily], scaled: set[str], arch_traps: int, opcodes: Counter[str]
) -> Iterator[Finding]:
    if not families:
        yield Finding("kernels", "it holds no kernel at all")
    if arch_traps:
        yield Finding("arch-trap", f"{arch_traps} cubins hold `{ARCH_TRAP.decode()}`: an instruction was guarded away")
    for family in families:
        if family.name not in scaled:
            continue
        for rule, count, what in (
            ("block-scaled-mma", family.block_scaled, "block-scaled MMA (QMMA.SF, OMMA.SF)"),
            ("tma", family.tma_loads, f"TMA load ({TMA_LOAD})"),
            ("pdl", family.pdl_waits, f"wait for the kernel before it ({PDL_WAIT}, griddepcontrol.wait)"),
        ):
            if not count:
                yield Finding(rule, f"{family.name}: a kernel holds no {what}")
        if family.traps:
            yield Finding("trap", f"{family.name}: {family.traps} BPT.TRAP in {family.instructions} instructions")
    if module.startswith(XQA) and not opcodes[FENCE]:
        yield Finding("fence", f"no {FENCE}: the release fences of F-11 are not in it")
