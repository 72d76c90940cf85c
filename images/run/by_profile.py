"""Words of `docker run` as a command: a profile's words with the user's over them, a model's, or those of any program.

Standard library only, as the entrypoint that imports it. The profiles come from profiles.json beside it, which
`sparkforge.serving.carried` writes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

USAGE = """\
usage: IMAGE [--profile NAME] [--parts all] [FLAG ...]    serve by a profile; by the default one if none is named
       IMAGE MODEL [FLAG ...]                             the same as: IMAGE vllm serve MODEL [FLAG ...]
       IMAGE COMMAND [WORD ...]                           any other command, as it is
for example: docker run --gpus all --ipc=host -p 8000:8000 -v ~/.cache/huggingface:/home/vllm/.cache/huggingface \\
             IMAGE openai/gpt-oss-120b
"""
# Flags that name a model by themselves, or ask vLLM about itself: no profile is put in front of these.
ALONE = ("--model", "--config", "--help", "-h", "--version", "-v")
# The kernel of the experts can be named in three ways, and vLLM refuses two that disagree: a user's way wins over ours.
KERNEL = ("VLLM_MXFP4_MOE_KERNEL", "VLLM_MXFP4_ACTIVATION")
KERNEL_FLAGS = ("--moe-backend", "--kernel-config")
KERNEL_OLDER = (
    "VLLM_MXFP4_USE_MARLIN",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS",
)
# Other spellings of flags that profiles have.
SPELLED = {
    "--attention-config": "--attention-backend",
    "-ac": "--attention-backend",
    "-sc": "--speculative-config",
    "-cc": "--compilation-config",
    "-tp": "--tensor-parallel-size",
}
Profiles = dict[str, Any]


class Refused(Exception):  # noqa: N818  as the errors of sparkforge
    """Words that mean nothing here: what, and what to do."""


def say(line: str) -> None:
    """One line for the log."""
    print(line, file=sys.stderr, flush=True)


def is_model(word: str) -> bool:
    """Whether a first word names a model: a folder with a configuration, or owner/name that is no program."""
    if (Path(word) / "config.json").is_file():
        return True
    return "/" in word and not word.startswith(("/", "./", "../")) and shutil.which(word) is None


def option(words: list[str], name: str) -> str | None:
    """Value of an option, in either spelling; the last one counts."""
    value = None
    for here, word in enumerate(words):
        if word == name and here + 1 < len(words):
            value = words[here + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def profiles(folder: Path) -> Profiles:
    """The profiles of this image; empty where it carries none."""
    try:
        known: Profiles = json.loads((folder / "profiles.json").read_text())
    except (OSError, ValueError):
        return {}
    return {**known, "left_out": parts_left_out(folder)}


def parts_left_out(folder: Path) -> dict[str, list[str]]:
    """Parts whose compiled modules were left out of this image, with the names of those; the manifest says it."""
    try:
        said = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        return {}
    return dict(said.get("parts_left_out", {}))


def command(words: list[str], known: Profiles) -> list[str]:
    """What to run for the words after the image's name; sets variables and says which profile was taken."""
    if words and not words[0].startswith("-") and not is_model(words[0]):
        provide(known.get("env", {}), words)
        return words
    words, name = taken(words, "--profile")
    words, parts = taken(words, "--parts")
    model = [words.pop(0)] if words and not words[0].startswith("-") else []
    asked = name is not None or parts is not None
    names = {spelled(word) for word in words if word.startswith("-")}
    alone = [flag for flag in ALONE if flag in names]
    if asked and alone:
        raise Refused(f"{alone[0]} says by itself what to serve", "leave out --profile and --parts, or that flag")
    if model or alone:
        if not asked:
            provide(known.get("env", {}), words)
            return ["vllm", "serve", *model, *words]
    elif not asked and known.get("default") is None:
        raise Refused("this image has no default profile", "give it a model\n" + USAGE)
    return by_profile(known, name, parts or "soaked", model, words)


def by_profile(known: Profiles, name: str | None, parts: str, model: list[str], words: list[str]) -> list[str]:
    """`vllm serve` with a profile's words and then the user's, which win."""
    choices = known.get("profiles", {})
    name = name or known.get("default")
    if name not in choices:
        raise Refused(f"there is no profile {name!r} in this image", f"profiles: {', '.join(choices) or 'none'}")
    profile = choices[name]
    if profile["machines"] > 1:
        raise Refused(f"profile {name} takes {profile['machines']} machines", f"invoke serve --profile {name} --print")
    asked = {part for part in parts.split(",") if part}
    if unknown := sorted(asked - {"soaked", "all", *profile["parts"]}):
        listed = ", ".join(["soaked", "all", *profile["parts"]])
        raise Refused(f"profile {name} has no part {unknown[0]!r}", f"parts: {listed}")
    on = [part for part, one in profile["parts"].items() if one["on"] or "all" in asked or part in asked]
    if lacking := [part for part in on if part in known["left_out"]]:
        modules = ", ".join(known["left_out"][lacking[0]])
        raise Refused(
            f"this image cannot turn on {', '.join(lacking)}: it was built without {modules}",
            "invoke build --aot all, or name only the other parts with --parts",
        )
    groups = {group[0]: group for group in profile["words"]}
    env = dict(profile["env"])
    for part in on:
        groups.update({group[0]: group for group in profile["parts"][part]["words"]})
        env.update(profile["parts"][part]["env"])
    users = {spelled(word) for word in words if word.startswith("-")}
    replaced = [flag for flag in groups if spelled(flag) in users]
    off = [part for part in profile["parts"] if part not in on]
    say(f"sparkforge: profile {name}, parts {', '.join(on) or 'none'}" + (f"; off: {', '.join(off)}" if off else ""))
    replaced += provide(env, words)
    if replaced:
        say(f"sparkforge: yours in place of the profile's: {', '.join(replaced)}")
    folder = profile["model"] if not model else ""
    if folder.startswith("/") and not Path(folder, "config.json").is_file():
        raise Refused(f"there is no model in {folder}", f"docker run -v FOLDER:{folder}:ro ...")
    kept = [word for flag, group in groups.items() if flag not in replaced for word in group]
    return ["vllm", "serve", *(model or [profile["model"]]), *kept, *words]


def provide(env: dict[str, str], words: list[str]) -> list[str]:
    """Set the variables that the user did not; the names of those that stay as the user has them."""
    flags = {spelled(word) for word in words if word.startswith("-")}
    kernel = flags & set(KERNEL_FLAGS) or any(name in os.environ for name in (*KERNEL, *KERNEL_OLDER))
    left = [name for name in env if name in os.environ or (kernel and name in KERNEL)]
    os.environ.update({name: value for name, value in env.items() if name not in left})
    return left


def spelled(word: str) -> str:
    """A flag by its one name: without a value, a key of its JSON, `no-`, or underscores."""
    flag = word.partition("=")[0].partition(".")[0]
    flag = SPELLED.get(flag, flag).replace("_", "-")
    flag = f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else flag
    return SPELLED.get(flag, flag)


def taken(words: list[str], name: str) -> tuple[list[str], str | None]:
    """Words without an option of ours, and its value."""
    value = option(words, name)
    if value is None:
        if name in words:
            raise Refused(f"{name} without a value", f"{name} VALUE")
        return words, None
    left = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == name:
            skip = True
        elif not word.startswith(f"{name}="):
            left.append(word)
    return left, value
