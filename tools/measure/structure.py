"""What is in an image, read without running anything of it: machines of its ELF files, RECORDs, labels and manifest.

    python tools/measure/structure.py TAG [--platform linux/arm64]

Reads the image's files from `docker export` as one stream. Writes results/build/structure-<target>-<machine>.json and
ends with status 1 where the image holds a program of another machine, where a RECORD lists a file that is not there or
not as listed, or where the manifest is not what the labels say.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import json
import posixpath
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, Any

from common import ROOT

from sparkforge.results.provenance import Run

MACHINES = {62: "x86_64", 183: "aarch64", 190: "cuda", 247: "bpf"}
WANTED = {"linux/arm64": "aarch64", "linux/amd64": "x86_64"}
MANIFEST = "opt/sparkforge/manifest.json"
CHUNK = 1 << 20


@dataclass
class Seen:
    """What is in an image.

    Attributes:
        digests: sha256 in RECORD's spelling, by path; empty for a link.
        machines: machine of each ELF file, by path.
        records: RECORD files of the environment.
        manifest: the image's own.
        count: files and bytes.
    """

    digests: dict[str, str] = field(default_factory=dict)
    machines: dict[str, str] = field(default_factory=dict)
    records: dict[str, bytes] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)

    def take(self, name: str, file: IO[bytes]) -> None:
        """Read one file."""
        head = file.read(CHUNK)
        if head[:4] == b"\x7fELF":
            number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
            self.machines[name] = MACHINES.get(number, str(number))
        digest, kept, block = hashlib.sha256(), [], head
        keep = name == MANIFEST or name.endswith(".dist-info/RECORD")
        while block:
            digest.update(block)
            self.count["bytes"] += len(block)
            if keep:
                kept.append(block)
            block = file.read(CHUNK)
        self.count["files"] += 1
        self.digests[name] = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
        if name == MANIFEST:
            self.manifest = json.loads(b"".join(kept))
        elif keep:
            self.records[name] = b"".join(kept)


def read(tag: str, platform: str) -> Seen:
    """Every file of an image."""
    seen = Seen()
    made = subprocess.check_output(["docker", "create", "--platform", platform, tag, "true"], text=True).strip()
    try:
        with (
            subprocess.Popen(["docker", "export", made], stdout=subprocess.PIPE) as export,
            tarfile.open(fileobj=export.stdout, mode="r|") as tar,
        ):
            for info in tar:
                file = tar.extractfile(info) if info.isreg() else None
                if file is not None:
                    seen.take(info.name, file)
                elif not info.isdir():
                    seen.digests[info.name] = ""
    finally:
        subprocess.run(["docker", "rm", made], check=False, capture_output=True)
    return seen


def record_faults(seen: Seen) -> tuple[list[str], int, list[str], list[str]]:
    """Lines of RECORDs that are not so, how many were looked at, files that two wheels bring, and files of none.

    Bytecode is left out: it is made after the wheel was laid. So are RECORDs that a wheel brings of packages that it
    vendors: nobody installed those.
    """
    listed: dict[str, dict[str, str]] = {}
    for record, data in seen.records.items():
        site = posixpath.dirname(posixpath.dirname(record))
        if posixpath.basename(site) not in ("site-packages", "dist-packages"):
            continue
        for path, digest, *_ in csv.reader(data.decode().splitlines()):
            name = posixpath.normpath(posixpath.join(site, path)) if not path.startswith("/") else path[1:]
            if not path.endswith(".pyc"):
                listed.setdefault(name, {})[record] = digest
    faults, twice = [], []
    for name, by in sorted(listed.items()):
        here, records = seen.digests.get(name), ", ".join(sorted(by))
        if here is None:
            faults.append(f"{records}: {name} is not there")
        elif here and all(by.values()) and f"sha256={here}" not in by.values():
            faults.append(f"{records}: {name} is another file")
        elif len(set(by.values())) > 1:
            twice.append(f"{name}: {records}")
    in_site = {name for name in seen.digests if "/site-packages/" in name and not name.endswith(".pyc")}
    return faults, len(listed), twice, sorted(in_site - listed.keys())


def label_faults(manifest: dict[str, Any], labels: dict[str, str], platform: str) -> list[str]:
    """Where manifest and labels do not say the same."""
    pairs = {"stack": "stack", "target": "target", "platform": "platform"}
    said = {f"dev.sparkforge.{label}": str(manifest.get(key)) for key, label in pairs.items()}
    for name, upstream in manifest.get("upstreams", {}).items():
        said[f"dev.sparkforge.tree.{name}"] = str(upstream.get("tree"))
    faults = [f"{key}: {labels.get(key)} in the labels, {value} in the manifest" for key, value in said.items()]
    faults = [fault for fault, (key, value) in zip(faults, said.items(), strict=True) if labels.get(key) != value]
    if manifest.get("platform") != platform:
        faults.append(f"the manifest is of {manifest.get('platform')}, {platform} was asked for")
    return faults


def main() -> None:
    """Read, judge, write."""
    run = Run(__file__)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag")
    parser.add_argument("--platform", default="linux/arm64", choices=WANTED)
    asked = parser.parse_args()
    image = json.loads(subprocess.check_output(["docker", "image", "inspect", asked.tag], text=True))[0]
    seen = read(asked.tag, asked.platform)
    wanted = WANTED[asked.platform]
    strangers = {name: kind for name, kind in seen.machines.items() if kind != wanted}
    records, lines, twice, unknown = record_faults(seen)
    labels = label_faults(seen.manifest, image["Config"]["Labels"] or {}, asked.platform)
    result = {
        "what": "files of an image: machines of ELF files, RECORDs, labels and manifest",
        "image": {"tag": asked.tag, "id": image["Id"], "bytes": image["Size"], "architecture": image["Architecture"]},
        "files": dict(seen.count),
        "elf": dict(Counter(seen.machines.values())),
        "elf_of_other_machines": strangers,
        "records": len(seen.records),
        "record_lines": lines,
        "record_faults": records,
        "files_of_two_wheels": twice,
        "files_in_no_record": unknown,
        "label_faults": labels,
        "manifest": seen.manifest,
    }
    out = ROOT / "results" / "build" / f"structure-{seen.manifest.get('target')}-{wanted}.json"
    run.write(out, result)
    print({key: result[key] for key in ("image", "files", "elf", "records", "record_lines")})
    faults = [*(f"{name} is of {kind}" for name, kind in strangers.items()), *records, *labels]
    if image["Architecture"] != asked.platform.partition("/")[2]:
        faults.append(f"the image is of {image['Architecture']}")
    if not seen.machines or not seen.records:
        faults.append("no program, or no installed package, was found")
    for fault in faults[:40]:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
