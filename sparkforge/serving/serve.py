"""Serving by profile: which image, which container, and running it until somebody stops it."""

from __future__ import annotations

import ipaddress
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

import msgspec

from sparkforge.aot.selection import ADD
from sparkforge.core import proc
from sparkforge.core.console import say, warn
from sparkforge.core.errors import BadInput, CheckFailed, EnvironmentLacks
from sparkforge.core.platforms import Platform
from sparkforge.engine import gpu
from sparkforge.engine.docker import Docker, DockerContainer
from sparkforge.image.labels import OURS, PARTS_LEFT_OUT
from sparkforge.inputs.recipes import Target
from sparkforge.serving import render
from sparkforge.serving.profile import Cluster, Profile
from sparkforge.serving.service import Service, launch

_STOPPED = (0, 130, 143)  # by itself, or by `docker stop`: an interrupt, or SIGTERM
_KILLED = 137
_GRACE = 30.0  # seconds from SIGTERM to SIGKILL


@dataclass(frozen=True)
class ServingImage:
    """An image to serve from.

    Attributes:
        tag: its name.
        target: serve or cpu.
        left_out: parts whose compiled modules were left out of it.
    """

    tag: str
    target: Target
    left_out: frozenset[str] = frozenset()

    def require(self, parts: Sequence[str]) -> None:
        """Raise if a part that is to be on needs a module that was left out of the image.

        Raises:
            BadInput: names the parts, and the build that adds the modules.
        """
        if lacking := [part for part in parts if part in self.left_out]:
            raise BadInput(
                f"{self.tag} cannot turn on {', '.join(lacking)}",
                why="FlashInfer modules that only these parts need were left out of the image",
                do=f"{ADD}, or name only the other parts with --parts",
            )


def changed(profile: Profile, *, port: int = 0, nodes: str = "", link: str = "", hca: str = "") -> Profile:
    """A profile with the settings of this machine.

    Args:
        profile: as in its file.
        port: of the server, 0 for the profile's.
        nodes: addresses of two machines with a comma between; the profile's where empty.
        link: network interface between them, likewise.
        hca: RoCE devices with commas between, likewise.

    Raises:
        BadInput: a port that is none, one address, or nodes for a profile of one machine.
    """
    if not 0 <= port < 2**16:
        raise BadInput(f"--port {port} is not a port", do="--port 8000")
    if port:
        profile = msgspec.structs.replace(profile, container=msgspec.structs.replace(profile.container, port=port))
    if not (nodes or link or hca):
        return profile
    if profile.cluster is None:
        raise BadInput(f"{profile.name} takes one machine", why="--nodes, --link and --hca are of two")
    addresses = tuple(nodes.split(",")) if nodes else profile.cluster.addresses
    if len(addresses) != 2 or not all(addresses):  # noqa: PLR2004  as many as the profile's
        raise BadInput(f"--nodes {nodes} does not name two machines", do="--nodes 192.168.100.10,192.168.100.11")
    cluster = Cluster(
        (addresses[0], addresses[1]),
        link or profile.cluster.link,
        tuple(hca.split(",")) if hca else profile.cluster.hcas,
        profile.cluster.port,
    )
    return msgspec.structs.replace(profile, cluster=cluster)


def address(host: str) -> str:
    """An address of this machine to serve on.

    Raises:
        BadInput: it is none.
    """
    try:
        return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
    except ValueError as wrong:
        raise BadInput(f"--host {host} is not an IP address", do="--host 127.0.0.1, or 0.0.0.0 for all") from wrong


def find(profile: Profile, *, tag: str = "", target: Target | None = None) -> ServingImage:
    """The image to serve from: the named one, or the newest of the profile's stack for this machine.

    Raises:
        EnvironmentLacks: no Docker daemon answers, or there is no such image.
        BadInput: the named image is not for this profile.
    """
    docker = engine()
    if tag:
        return _named(profile, docker, tag)
    wanted = target or profile.targets[0]
    platform = Platform.host()
    labels = {"stack": profile.stack, "target": wanted, "platform": platform.oci}
    found = docker.find({f"{OURS}{name}": value for name, value in labels.items()})
    if not found:
        raise EnvironmentLacks(
            f"there is no image of {profile.stack} for {wanted} on {platform.oci}",
            why="Docker holds none; images in buildah cannot be served from",
            do=f"invoke build --target {wanted}",
        )
    said = docker.labels(found[0])
    if said.get(f"{OURS}test-only"):
        warn(f"{found[0]} is for tests: no machine of {platform.oci} has the GPU that it was built for")
    return ServingImage(found[0], wanted, _left_out(said))


def engine() -> Docker:
    """The engine that serves; buildah gives no GPUs and has no volumes."""
    return Docker("docker")


def planned(profile: Profile, tag: str, *, of_build: str, target: Target | None = None) -> ServingImage:
    """The image to print a command for: as `find` has it, else the name that a build would give."""
    try:
        return find(profile, tag=tag, target=target)
    except EnvironmentLacks as lacks:
        say(f"  not here yet: {lacks.what}; {lacks.do}")
        return ServingImage(tag or of_build, target or profile.targets[0])


def _named(profile: Profile, docker: Docker, tag: str) -> ServingImage:
    if not docker.has(tag):
        raise EnvironmentLacks(f"there is no image {tag}", why="Docker holds none of that name", do="invoke build")
    said = docker.labels(tag)
    target = said.get(f"{OURS}target", profile.targets[0])
    of_it = next((known for known in profile.targets if known == target), None)
    if of_it is None or said.get(f"{OURS}stack", profile.stack) != profile.stack:
        raise BadInput(
            f"{tag} is not an image for {profile.name}",
            why=f"it is {said.get(f'{OURS}stack')} {target}; wanted: {profile.stack} {' or '.join(profile.targets)}",
            do="invoke profiles",
        )
    return ServingImage(tag, of_it, _left_out(said))


def _left_out(labels: Mapping[str, str]) -> frozenset[str]:
    return frozenset(filter(None, labels.get(PARTS_LEFT_OUT, "").split(",")))


def run(services: Sequence[Service], *, dry: bool = False) -> None:
    """Run the container in the foreground; its log goes to standard output.

    SIGTERM, SIGINT and SIGHUP stop it; a second one kills it. Either way it is removed.

    Raises:
        BadInput: the profile takes more machines than this one.
        EnvironmentLacks: it needs a GPU, and there is none.
        CheckFailed: the server ended by itself.
    """
    if len(services) > 1:
        raise BadInput(
            f"{services[0].name} is one of {len(services)} machines", why="each runs its own command", do="add --print"
        )
    (service,) = services
    say(f"$ {proc.quoted(render.argv(service))}")
    if dry:
        return
    if service.gpus:
        gpu.demand(service.name)
    for mount in service.mounts:
        if mount.make:
            Path(mount.source.value).mkdir(parents=True, exist_ok=True)
    asked = launch(service)
    events: SimpleQueue[str] = SimpleQueue()
    with _signals(events):
        container = engine().run(asked)
        try:
            code = _attended(container, events)
        finally:
            container.remove()
    if code == _KILLED:
        raise CheckFailed(
            "the server was killed",
            why="probably out of memory: on a Spark, CPU and GPU share it",
            do="sudo dmesg | grep -i oom, then --flags '--gpu-memory-utilization 0.6'",
        )
    if code not in _STOPPED:
        raise CheckFailed(f"the server ended with status {code}", why="its log is above")


def _attended(container: DockerContainer, events: SimpleQueue[str]) -> int:
    """Show a container's log until it ends or a signal comes; its exit status, 0 if we stopped it."""
    lost: list[Exception] = []

    def show() -> None:
        try:
            for piece in container.follow():
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        except Exception as failed:  # noqa: BLE001  raised below, in the main thread
            lost.append(failed)
        events.put("")

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    came = events.get()
    if came:
        say(f"{came}: stopping {container.id}, which may take {_GRACE:.0f} s ...")
        container.stop(grace=_GRACE)
        shown.join(5)
        return 0
    if lost:
        raise lost[0]
    return container.wait()


@contextmanager
def _signals(events: SimpleQueue[str]) -> Iterator[None]:
    """Put the names of signals into a queue, whose `put` may interrupt anything; the second one raises."""
    seen: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        seen.append(number)
        if len(seen) > 1:
            raise KeyboardInterrupt
        events.put(signal.Signals(number).name)

    ours = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    heard = [number for number in ours if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    before = {number: signal.signal(number, note) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
