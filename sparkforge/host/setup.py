"""Make this machine ready to build: say what is missing, do only that, look again.

It works in rounds, because the next thing to do depends on what the last one gave: if a Docker that was installed
cannot build here, buildah comes next. A user who is not root gets the same through `sudo -n`. Where sudo wants a
password, setup prints the lines to run, and the command that goes on after them.
"""

from __future__ import annotations

import os
import shutil
import sys
import time

from sparkforge.core.console import say
from sparkforge.core.errors import EnvironmentLacks, SparkforgeError
from sparkforge.core.platforms import Platform
from sparkforge.core.proc import quoted, run
from sparkforge.core.store import Store
from sparkforge.engine.choose import candidates, forget
from sparkforge.host.detect import Host, barred, detect
from sparkforge.host.plan import Action, let_in, plan, wanted

_SUDO = ("sudo", "-n")
_ENTERED = "SPARKFORGE_IN_GROUP_DOCKER"
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
        EnvironmentLacks: root is needed and sudo wants a password (`do` gives the lines, and how to go on), or
            something is still missing after it was tried.
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
        as_root = _rights(host, actions)
        for action in actions:
            fallback = _act(action, as_root) or fallback
        done += actions
    host = _look(store, platform)
    left = plan(host, platform, fallback=True)
    if left or not host.able:
        raise EnvironmentLacks(
            "this machine is still not ready",
            why="; ".join([*host.refused, *(action.title for action in left)]) or "no working container engine found",
            do="see above what was tried; install an engine by hand: any Docker with BuildKit, or buildah",
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


def _rights(host: Host, actions: list[Action]) -> tuple[str, ...]:
    """Words in front of commands that need root.

    Raises:
        EnvironmentLacks: we are not root, and sudo wants a password or is not there.
    """
    if host.root or not any(action.commands for action in actions):
        return ()
    if "sudo" in host.programs and run([*_SUDO, "true"], check=False).code == 0:
        return _SUDO
    again = quoted(sys.argv)
    # A Docker that is only now installed or started will be closed to the user as well.
    if any(action.waits for action in actions):
        actions = [*actions, let_in(host)]
    if any(action.enters for action in actions):
        again = quoted(["sg", "docker", "-c", again])
    how = "sudo " if "sudo" in host.programs else ""
    lines = [how + quoted(command) for action in actions for command in action.commands]
    raise EnvironmentLacks(
        "setup needs root" + (", and sudo asks for a password" if how else ""),
        why="; ".join(action.title for action in actions),
        do="\n       ".join(["run these lines; the last one goes on with what you asked for:", *lines, again]),
    )


def _act(action: Action, as_root: tuple[str, ...]) -> bool:
    """Run an action's commands; True if it was Docker's and did not work, which is no failure yet."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    front = (*as_root, "env", "DEBIAN_FRONTEND=noninteractive") if as_root else ()
    say(f"{action.title} ...")
    for command in action.commands:
        words = [*front, *command]
        if as_root:
            say(f"  $ {quoted(words)}")
        if action.packages and command[:2] == ("apt-get", "install"):
            _install(words, [*front, "apt-get", "update"], environment, updated=len(action.commands) > 1)
        else:
            try:
                run(words, env=environment, error=EnvironmentLacks)
            except SparkforgeError:
                if not action.waits:
                    raise
                return True
    if action.enters:
        _enter()
    return action.waits and not _daemon_answers()


def _enter() -> None:
    """Become the same command in the group docker, which this login is not in yet.

    Raises:
        EnvironmentLacks: that was done already, or there is no `sg` to do it.
    """
    if os.environ.get(_ENTERED) or shutil.which("sg") is None:
        raise EnvironmentLacks(
            "Docker's socket is closed to this login",
            why="the group docker counts from the next login on",
            do=f"log out and in again, then: {quoted(sys.argv)}",
        )
    say("going on as a member of the group docker")
    sys.stdout.flush()
    os.environ[_ENTERED] = "1"
    os.execvp("sg", ["sg", "docker", "-c", quoted(sys.argv)])  # noqa: S606  the same words


def _install(command: list[str], update: list[str], environment: dict[str, str], *, updated: bool) -> None:
    try:
        run(command, env=environment, error=EnvironmentLacks)
    except EnvironmentLacks:
        if updated:
            raise
        say("  the package lists are old: apt-get update")  # a version that they name is gone from the mirror
        run(update, env=environment, error=EnvironmentLacks)
        run(command, env=environment, error=EnvironmentLacks)


def _daemon_answers() -> bool:
    end = time.monotonic() + _DAEMON_SECONDS
    while time.monotonic() < end:
        if barred() or any(engine.answer() for engine in candidates("docker")):
            return True
        time.sleep(0.5)
    say(f"  no Docker daemon answered within {_DAEMON_SECONDS:.0f} s; its log: /var/log/sparkforge-dockerd.log")
    return False
