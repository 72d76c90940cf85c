"""Tasks that serve by profile."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, put
from sparkforge.core import console
from sparkforge.core.errors import BadInput


@task(
    help={
        "profile": "name of a profile (see `invoke profiles`); default: the one of `serve` images",
        "parts": "soaked; all, which turns on parts without a soak too; or names of parts to add to the soaked ones",
        "image": "image to serve from; default: the newest of the profile's stack",
        "target": "serve or cpu, for a profile that is for both",
        "host": "address of this machine to serve on; 0.0.0.0 is every one of its addresses",
        "port": "of the server, on this machine and in the container",
        "api-key-file": "file with a key that clients must send; VLLM_API_KEY in the environment does the same",
        "flags": "more words for `vllm serve`, in one argument; they replace the profile's",
        "nodes": "addresses of two machines, with a comma between",
        "link": "network interface between them",
        "hca": "RoCE devices between them, with commas between",
        "print": "print the commands instead of running them",
        "compose": "print compose files",
        "dry-run": "say what would run, and run nothing",
        "json": "print everything as JSON and run nothing",
    }
)
def serve(
    _: Context,
    profile: str = "",
    parts: str = "soaked",
    image: str = "",
    target: str = "",
    host: str = "127.0.0.1",
    port: int = 0,
    api_key_file: str = "",
    flags: str = "",
    nodes: str = "",
    link: str = "",
    hca: str = "",
    print_: bool = False,
    compose: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Serve a model by profile until stopped, or print the command or the compose file for it."""
    from sparkforge.core.store import Store
    from sparkforge.image import request
    from sparkforge.inputs.recipes import load_stack
    from sparkforge.serving import load, render, service, words
    from sparkforge.serving import serve as serving
    from sparkforge.smoke.tiny.make import make

    console.quiet(on=json)
    known = load.catalogue()
    named = known.find(profile) if profile else known.default("serve")
    chosen = serving.changed(named, port=port, nodes=nodes, link=link, hca=hca)
    of_target = next((one for one in chosen.targets if one == (target or one)), None)
    if of_target is None:
        raise BadInput(f"{chosen.name} is not for target {target!r}", why=f"targets: {', '.join(chosen.targets)}")
    command = words.with_users(words.command(known, chosen, parts), shlex.split(flags))
    shows = print_ or compose or json
    asked = of_target if target else None
    if shows:
        usual = request.parse(load_stack(chosen.stack), target=of_target).tag
        found = serving.planned(chosen, image, of_build=usual, target=asked)
    else:
        found = serving.find(chosen, tag=image, target=asked)
    found.require(command.on)
    model = make(Store.open()) if chosen.made else None
    key_file = Path(api_key_file) if api_key_file else None
    services = service.services(
        command, found.tag, found.target, model=model, host=serving.address(host), key_file=key_file
    )
    off = f"; off: {', '.join(command.off)} (--parts all)" if command.off else ""
    console.say(f"profile {chosen.name}, parts {', '.join(command.on) or 'none'}{off}")
    if json:
        put(_as_json(command, services, found.tag))
    elif compose:
        print("---\n".join(render.compose(one) for one in services), end="")
    elif print_:
        print("\n\n".join(render.shell(one) for one in services))
    else:
        serving.run(services, dry=dry_run)


@task(help={"name": "print everything about one profile", "parts": "as `invoke serve` has it", "json": JSON})
def profiles(_: Context, name: str = "", parts: str = "soaked", json: bool = False) -> None:
    """What can be served, with which parts, their evidence, and predicted figures."""
    from sparkforge.serving import load, profile_table

    console.quiet(on=json)
    known = load.catalogue()
    if name:
        one = profile_table.row(known, known.find(name), parts)
        put(one) if json else print(profile_table.told(known, one))
        return
    rows = [profile_table.row(known, one, parts if parts == "all" else "soaked") for one in known.profiles.values()]
    put(rows) if json else print(profile_table.table(rows))


def _as_json(command: Any, services: Any, tag: str) -> dict[str, Any]:
    from sparkforge.serving import profile_table, render

    return {
        "profile": command.profile.name,
        "image": tag,
        "parts": command.on,
        "off": command.off,
        "env": command.env,
        "words": command.words,
        "predicted": profile_table.figures(command),
        "containers": [
            {"name": one.name, "argv": render.argv(one), "shell": render.shell(one), "compose": render.compose(one)}
            for one in services
        ],
    }
