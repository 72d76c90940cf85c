"""What a result says of the run that made it; every program that measures writes its result with this file.

Standard library only, so that it also runs where nothing of ours is installed. Five lines bind a result:

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # root of the checkout
    from sparkforge.results.provenance import Run
    run = Run(__file__)                               # before the work; children inherit it by the environment
    run.compiled(folder)                              # where a compiler left depfiles (-MD), or ninja its log
    run.write(Path("out.json"), {"samples": samples})  # adds the key "provenance" and the hash of the content

Where there is no git, SPARKFORGE_COMMIT says the commit. A Python child that opens sources calls `tell()` before it
ends. The sources are those that were opened: modules that were imported, and files that a compiler read. Each has git's
blob id, taken at the run.

The hash shows an edit by hand. It is no signature: who edits a result can hash it again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

KEY = "provenance"
FORMAT = 1
ROOT = Path(__file__).resolve().parents[2]
MARK = "sparkforge_tree.txt"  # in a patched package: git's id of the tree that it was made from
UPSTREAMS = ("vllm", "flashinfer")
# Where FlashInfer's wheel keeps what its source tree has at the top.
MOVED = {
    "flashinfer/data/csrc/": "csrc/",
    "flashinfer/data/include/": "include/",
    "flashinfer/data/cutlass/": "3rdparty/cutlass/",
    "flashinfer/data/spdlog/": "3rdparty/spdlog/",
}
PACKAGES = ("torch", "triton", "vllm", "flashinfer-python", "transformers", "numpy", "apache-tvm-ffi")
WIDTH = 120
# A build copies other projects there: no file of the tree.
BUILT = ("vllm/vllm_flash_attn/", "vllm/third_party/")
TOLD = "SPARKFORGE_READS"  # folder in which children of a run say what they opened
# Below the checkout: what is made, and what writes results, which measures nothing.
_NOT_SOURCES = ("build/", ".venv/", ".git/", "results/", "sparkforge/results/")
_FOLDERS = re.compile(r"file:///(?:[\w.+@~-]+/)*|(?<![\w.:/])/(?:[\w.+@~-]+/)+")
_NAMED: dict[Path, tuple[str, str]] = {}
_BEGUN = time.time()


@dataclass
class Sources:
    """What was opened.

    Attributes:
        reads: git's blob id of each source, by name: `path` of the checkout, or `UPSTREAM:path` of a patched tree.
        trees: git's id of each patched tree, by upstream.
        wrong: why this cannot be trusted, in sentences: a source was written during the run, or two trees were read.
    """

    reads: dict[str, str] = field(default_factory=dict)
    trees: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def take(self, paths: Iterable[Path]) -> None:
        """Add files; what lies outside the checkout and the patched trees is left out."""
        for path in paths:
            name, tree = _name(path.resolve())
            if not name:
                continue
            if path.stat().st_mtime > _BEGUN:
                self.wrong.append(f"{name} was written during the run")
            self.merge({name: blob(path.read_bytes())}, {name.partition(":")[0]: tree} if tree else {})

    def merge(self, reads: Mapping[str, str], trees: Mapping[str, str], wrong: Iterable[str] = ()) -> None:
        """Add what was opened elsewhere."""
        for kept, more in ((self.reads, reads), (self.trees, trees)):
            for name, found in more.items():
                if kept.setdefault(name, found) != found:
                    self.wrong.append(f"{name} is {kept[name]} and {found}: two were read")
        self.wrong += wrong


class Run:
    """One run of a program, from its start to its result.

    Args:
        program: the program's file.
    """

    def __init__(self, program: str | Path) -> None:
        self.program = Path(program).resolve()
        self.sources = Sources()
        self.begun, self._clock = _utc(), time.monotonic()
        self._told = tempfile.mkdtemp(prefix="sparkforge-reads-")
        os.environ[TOLD] = self._told
        self.commit = _commit()
        self.read([self.program])

    def read(self, paths: Iterable[Path]) -> None:
        """Add sources that this program gave to another one, a compiler say."""
        self.sources.take(paths)

    def compiled(self, folder: Path) -> None:
        """Add every file that depfiles below `folder`, and ninja's own log of them, name."""
        self.read(_of_depfiles(folder))

    def tree(self, folder: Path, upstream: str, tree: str) -> None:
        """Say which tree lies in a folder of sources that carries no mark of its own; before anything of it is read."""
        _NAMED[folder.resolve()] = (upstream, tree)

    def of_tree(self, upstream: str, tree: str, files: Mapping[str, str], names: Iterable[str]) -> None:
        """Add files that were opened elsewhere, in an installed package that is known to be a tree's.

        Args:
            upstream: whose they are.
            tree: git's id of the tree.
            files: blob ids of the tree's files, by path.
            names: as site-packages has them; a file that is none of the tree's is left out.
        """
        paths = {_moved(name) for name in names} & files.keys()
        self.sources.merge({f"{upstream}:{path}": files[path] for path in paths}, {upstream: tree})

    def record(self) -> dict[str, Any]:
        """All that is known of the run so far."""
        self.read(_imported())
        for path in sorted(Path(self._told).glob("*.json")):
            self.sources.merge(**json.loads(path.read_bytes()))
        return {
            "format": FORMAT,
            "program": _name(self.program)[0] or self.program.name,
            "command": [plain(word) for word in sys.argv],
            "begun": self.begun,
            "ended": _utc(),
            "seconds": round(time.monotonic() - self._clock, 3),
            "commit": self.commit,
            "machine": machine(),
            "versions": versions(),
            "trees": dict(sorted(self.sources.trees.items())),
            "wrong": sorted(set(self.sources.wrong)),
            "reads": dict(sorted(self.sources.reads.items())),
        }

    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        """Write the result: `content`, and this run under the key "provenance". May be called again as a run goes on.

        Args:
            path: replaced as a whole, never left half written.
            content: what JSON can hold; anything else is written as its text.
        """
        result = json.loads(json.dumps({**content, KEY: self.record()}, default=str))
        result[KEY]["sha256"] = digest(result)
        part = path.with_name(f".{path.name}.part")
        part.write_text(text(result) + "\n")
        part.replace(path)


def tell() -> None:
    """In a child of a run: say which sources this process opened. Does nothing where there is no run."""
    if folder := os.environ.get(TOLD):
        found = Sources()
        found.take(_imported())
        (Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}.json").write_text(json.dumps(vars(found)))


def digest(result: Mapping[str, Any]) -> str:
    """sha256 of a result's content, in hex: of its values and not of its layout; the hash itself is left out."""
    said = {**result, KEY: {key: value for key, value in result[KEY].items() if key != "sha256"}}
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def blob(data: bytes) -> str:
    """Git's id of a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def text(value: Any, *, indent: int = 0, lead: int = 0) -> str:
    """JSON that people can read: what fits a line stands on one, and numbers and words fill theirs."""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or lead + len(flat) <= WIDTH:
        return flat
    inner = indent + 1
    lines: list[str] = []
    full = True  # whether nothing more goes on the last line
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        name = f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(value, dict) else ""
        item = name + text(one, indent=inner, lead=inner + len(name) + 1)
        alone = isinstance(one, dict | list)
        if not (full or alone) and inner + len(lines[-1]) + len(item) + 3 <= WIDTH:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
        full = alone
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    margin = f"\n{' ' * inner}"
    return f"{opening}{margin}" + f",{margin}".join(lines) + f"\n{' ' * indent}{closing}"


def machine() -> dict[str, Any]:
    """Processor, system and GPUs, without the machine's name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    fields = ("name", "compute_cap", "driver_version", "memory.total", "power.limit", "clocks.max.sm", "clocks.max.mem")
    query = [f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    rows = (_said("nvidia-smi", *query) or "").splitlines()
    return {
        "cpu": next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor()),
        "cpus": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "load": list(os.getloadavg()),
        "gpus": [dict(zip(fields, row.split(", "), strict=False)) for row in rows],
    }


def versions() -> dict[str, str]:
    """Of Python, nvcc, and the packages that numbers depend on, where they are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    nvcc = shutil.which("nvcc") or str(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/nvcc")
    release = re.search(r"release ([\d.]+), V([\d.]+)", _said(nvcc, "--version") or "")
    return found | ({"nvcc": release[2]} if release else {})


def plain(word: str) -> str:
    """A word of the command without folders of this machine; a path in the checkout stays as it is below its root."""
    return _FOLDERS.sub("", word.replace(f"{ROOT}/", ""))


def _commit() -> dict[str, Any]:
    """Commit of the checkout, and files that differ from it; where there is no git, what SPARKFORGE_COMMIT says."""
    found = _said("git", "-C", str(ROOT), "rev-parse", "HEAD")
    if found is None:
        return {"id": os.environ.get("SPARKFORGE_COMMIT"), "dirty": None, "from": "environment"}
    status = _said("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no") or ""
    return {"id": found, "dirty": [line[3:] for line in status.splitlines()], "from": "git"}


def _said(*words: str) -> str | None:
    """Output of a program; None where it is not there or fails."""
    if shutil.which(words[0]) is None:
        return None
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return None if done.returncode else done.stdout.rstrip()


def _utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _imported() -> list[Path]:
    """Files of the modules that this process has imported."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [Path(file) for file in files if isinstance(file, str) and file.endswith(".py")]


def _of_depfiles(folder: Path) -> set[Path]:
    """Files that compilers below a folder read."""
    found: set[Path] = set()
    for path in folder.rglob("*.d"):
        rule = path.read_text().replace("\\\n", " ").partition(": ")[2]
        found |= {path.parent / word for word in rule.split()}
    for log in folder.rglob(".ninja_deps"):
        # Several modules that were built at once have one log, in the folder above theirs.
        files = (
            [log.parent / "build.ninja"] if (log.parent / "build.ninja").is_file() else log.parent.glob("*/build.ninja")
        )
        with tempfile.NamedTemporaryFile("w", suffix=".ninja") as manifest:
            manifest.write("".join(f"subninja {file}\n" for file in files))
            manifest.flush()
            said = _said("ninja", "-C", str(log.parent), "-f", manifest.name, "-t", "deps") or ""
        found |= {log.parent / line.strip() for line in said.splitlines() if line.startswith(" ")}
    return found


def _name(path: Path) -> tuple[str, str]:
    """Name of a source, and the id of its tree if it is an upstream's; two empty strings for anything else."""
    if not path.is_file() or path.suffix == ".so":
        return "", ""
    if found := _package(path.parent):
        home, upstream, tree = found
        inside = path.relative_to(home).as_posix()
        return ("", "") if inside.startswith(BUILT) else (f"{upstream}:{_moved(inside)}", tree)
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    return ("", "") if name.startswith(_NOT_SOURCES) else (name, "")


def _moved(name: str) -> str:
    """Path in the source tree of a name in site-packages."""
    old, new = next(((old, new) for old, new in MOVED.items() if name.startswith(old)), ("", ""))
    return new + name.removeprefix(old)


@cache
def _package(folder: Path) -> tuple[Path, str, str] | None:
    """Of a folder in a patched upstream: where the upstream's paths begin, its name, its tree; None for any other."""
    for home in (folder, *folder.parents):
        if home in _NAMED:
            return home, *_NAMED[home]
        for upstream in UPSTREAMS:
            mark = home / upstream / MARK
            # Beside an installed package lie others; a source tree has one project file for all of it.
            inside = folder.is_relative_to(mark.parent) or (home / "pyproject.toml").is_file()
            if inside and mark.is_file():
                return home, upstream, mark.read_text().strip()
    return None
