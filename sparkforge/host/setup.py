"""Make this machine ready to build: say what is missing, do only that, look again.

`setup(store, platform)` does it; `missing(store, platform)` only tells. Without root it prints the commands and
ends with status 3. It works in rounds, because what the next thing to do is depends on what the last one gave:
a Docker that was installed and cannot build here is answered with buildah.
"""

from __future__ import annotations

import os
import time

from sparkforge.core.console import say
from sparkforge.core.errors import EnvironmentLacks, SparkforgeError
from sparkforge.core.platforms import Platform
from sparkforge.core.proc import quoted, run
from sparkforge.core.store import Store
from sparkforge.engine.choose import candidates, forget
from sparkforge.host.detect import Host, detect
from sparkforge.host.plan import Action, plan, wanted

_ROUNDS = 4
_DAEMON_SECONDS = 30.0


def missing(store: Store, platform: Platform) -> list[Action]:
    """What `setup` would do now."""
    return plan(_look(store, platform), platform)


def setup(store: Store, platform: Platform, *, dry_run: bool = False) -> list[Action]:
    """Make this machine ready to build images for a platform.

    Args:
        store: verdicts on engines are kept there.
        platform: of the images; another than the machine's needs emulation for its base.
        dry_run: say what would be done and do nothing.

    Returns:
        What was done, or would be.

    Raises:
        EnvironmentLacks: something is missing and we are not root (`do` gives the commands), or it was tried and
            is missing still.
    """
    done: list[Action] = []
    fallback = False
    forget(store)
    for _ in range(_ROUNDS):
        host = _look(store, platform)
        actions = plan(host, platform, fallback=fallback)
        if not actions and (host.able or fallback):
            break
        if not actions:
            fallback = True
            continue
        _tell(host, actions)
        if dry_run:
            return actions
        if not host.root:
            raise EnvironmentLacks(
                "this machine lacks something, and only root can install it",
                why="; ".join(action.title for action in actions),
                do=_commands(host, actions),
            )
        for action in actions:
            fallback = _act(action) or fallback
        done += actions
    host = _look(store, platform)
    left = plan(host, platform, fallback=True)
    if left or not host.able:
        raise EnvironmentLacks(
            "this machine is not ready still",
            why="; ".join([*host.refused, *(action.title for action in left)]) or "no engine proves able",
            do="what was tried stands above; install an engine by hand: any Docker with BuildKit, or buildah",
        )
    say(f"ready: {host.able[0]}" if done else f"ready, nothing to do: {host.able[0]}")
    return done


def _look(store: Store, platform: Platform) -> Host:
    first = detect(store)
    lacks = {*wanted(first, platform), "buildah"}
    return first if first.able and lacks == {"buildah"} else detect(store, lacks)


def _tell(host: Host, actions: list[Action]) -> None:
    say(f"{host.distribution.name}, {host.platform.oci}: to do")
    for action in actions:
        say(f"  {action.title}")
        say(f"    why: {action.why}")
        for command in action.commands:
            say(f"    {quoted(command)}")


def _commands(host: Host, actions: list[Action]) -> str:
    sudo = "sudo " if "sudo" in host.programs else ""
    lines = [sudo + quoted(command) for action in actions for command in action.commands]
    if any(action.waits for action in actions) and not any("docker" in line for line in host.able):
        lines.append(f"{sudo}usermod --append --groups docker {os.environ.get('USER', '$USER')}  and log in again")
    return "\n       ".join(lines)


def _act(action: Action) -> bool:
    """Run an action's commands; True when it was Docker's and did not work, which is no failure yet."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    say(f"{action.title} ...")
    for command in action.commands:
        if action.packages and command[:2] == ("apt-get", "install"):
            _install(command, environment, updated=len(action.commands) > 1)
        else:
            try:
                run(command, env=environment, error=EnvironmentLacks)
            except SparkforgeError:
                if not action.waits:
                    raise
                return True
    return action.waits and not _daemon_answers()


def _install(command: tuple[str, ...], environment: dict[str, str], *, updated: bool) -> None:
    try:
        run(command, env=environment, error=EnvironmentLacks)
    except EnvironmentLacks:
        if updated:
            raise
        say("  the package lists are old: apt-get update")  # a version that they name is gone from the mirror
        run(["apt-get", "update"], env=environment, error=EnvironmentLacks)
        run(command, env=environment, error=EnvironmentLacks)


def _daemon_answers() -> bool:
    end = time.monotonic() + _DAEMON_SECONDS
    while time.monotonic() < end:
        if any(engine.answer() for engine in candidates("docker")):
            return True
        time.sleep(0.5)
    say(f"  no Docker daemon answered within {_DAEMON_SECONDS:.0f} s; its log: /var/log/sparkforge-dockerd.log")
    return False
