"""An upstream of its own: its releases on a package index, and a stack with a series of two patches on the first."""

from __future__ import annotations

import io
import tarfile

import msgspec
from patch_forge import NUMBERS, Forge, changed_numbers, message

from sparkforge.git.of_store import git_of
from sparkforge.inputs import package_index, releases
from sparkforge.inputs.recipes import File, load_stack
from sparkforge.inputs.sources import pin_commit

CODE = b"def one():\n    return 1\n\n\ndef two():\n    return 2\n\n\ndef three():\n    return 3\n"
NEW = changed_numbers(2, word="upstream")
RELEASES = {
    "1.0": {"pkg/numbers.txt": NUMBERS, "pkg/code.py": CODE},
    "1.1": {"pkg/numbers.txt": NUMBERS + b"more\n", "pkg/code.py": CODE},
    "1.2": {"pkg/numbers.txt": NEW, "pkg/code.py": CODE, "requirements/cuda.txt": b"torch==2\nother-package==2.0\n"},
    "1.3rc1": {"pkg/numbers.txt": NEW, "pkg/code.py": CODE},
    "1.3": {"pkg/numbers.txt": b"first\n" + NEW, "pkg/code.py": CODE},
    "1.5": {"pkg/numbers.txt": b"first\n" + NEW, "pkg/code.py": CODE},
}


def sdist(name, version, files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, data in files.items():
            info = tarfile.TarInfo(f"{name}-{version}/{path}")
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def make_upstream(local_index, store, tmp_path):
    """A stack of `demo` 1.0 with one patch of three, and an index with the releases after it."""
    for memo in (package_index._pages, package_index._local, releases.of):
        memo.cache_clear()
    digests = {v: local_index.add("demo", f"demo-{v}.tar.gz", sdist("demo", v, files)) for v, files in RELEASES.items()}
    for version in (*RELEASES, "1.4"):
        digests[f"wheel {version}"] = local_index.add("demo", f"demo-{version}-py3-none-any.whl", version.encode())
    local_index.add("other-package", "other_package-2.0.tar.gz", sdist("other_package", "2.0", {"a.py": b"x = 1\n"}))
    page = local_index.folder / "simple/demo/index.html"
    page.write_text(page.read_text().replace(">demo-1.5", ' data-yanked="it was broken">demo-1.5'))
    one = load_stack().upstreams["flashinfer"]
    demo = msgspec.structs.replace(
        one,
        package="demo",
        release="1.0",
        sdist=File("demo-1.0.tar.gz", digests["1.0"]),
        wheels=dict.fromkeys(one.wheels, File("demo-1.0-py3-none-any.whl", digests["wheel 1.0"])),
        series=str(tmp_path / "series/demo/1.0"),
    )
    stack = msgspec.structs.replace(load_stack(), upstreams={"demo": demo})
    pin = pin_commit(store, stack, "demo")
    forge = Forge(git_of(store), tmp_path, pin.commit)
    patches = forge.patches(
        (message("D-01", "numbers: change two", drop="exists never"), {"pkg/numbers.txt": changed_numbers(2)}),
        (
            message("D-02", "code: three is four", drop="exists never"),
            {"pkg/code.py": CODE.replace(b"return 3", b"return 4")},
        ),
    )
    folder = tmp_path / "series/demo/1.0"
    folder.mkdir(parents=True)
    for patch in patches:
        (folder / patch.name).write_bytes(patch.raw)
    (folder / "series").write_text("".join(f"{patch.name}\n" for patch in patches))
    return stack
