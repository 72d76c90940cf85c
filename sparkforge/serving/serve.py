"""Serving by profile: which image, which container, and running it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkforge.aot.selection import ADD
from sparkforge.core import proc
from sparkforge.core.console import say, warn
from sparkforge.core.errors import BadInput, CheckFailed, EnvironmentLacks, SparkforgeError
from sparkforge.core.platforms import Platform
from sparkforge.engine.docker import clients
from sparkforge.image.labels import OURS, PARTS_LEFT_OUT
from sparkforge.inputs.recipes import Target
from sparkforge.serving import render
from sparkforge.serving.profile import Cluster, Profile
from sparkforge.serving.service import Service

_STOPPED = (0, 130, 143)  # by the user: an interrupt, or SIGTERM
_KILLED = 137


@dataclass(frozen=True)
class Image:
    """An image to serve from.

    Attributes:
        tag: its name.
        target: serve or cpu.
        program: path of the Docker client that holds it; empty where nobody has it yet.
        left_out: parts whose compiled modules were left out of it.
    """

    tag: str
    target: Target
    program: str = ""
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
    """A profile with what is this machine's own.

    Args:
        profile: as it stands in its file.
        port: of the server, 0 for the profile's.
        nodes: addresses of two machines with a comma between; the profile's where empty.
        link: network interface between them, likewise.
        hca: RoCE devices with commas between, likewise.

    Raises:
        BadInput: a port that is none, one address, or nodes for a profile of one machine.
    """
    if not 0 <= port < 2**16:
        raise BadInput(f"--port {port} is no port", do="--port 8000")
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


def find(profile: Profile, *, tag: str = "", target: Target | None = None) -> Image:
    """The image to serve from: the named one, or the newest of the profile's stack for this machine.

    Raises:
        EnvironmentLacks: there is no Docker that answers, or no image.
        BadInput: the named image is not for this profile.
    """
    program, refused = _docker()
    if not program:
        raise EnvironmentLacks(
            "there is no Docker that answers", why=refused, do="invoke setup, or --print for the commands"
        )
    if tag:
        return _named(profile, program, tag)
    wanted = target or profile.targets[0]
    platform = Platform.host()
    labels = {"stack": profile.stack, "target": wanted, "platform": platform.oci}
    filters = [word for name, value in labels.items() for word in ("--filter", f"label={OURS}{name}={value}")]
    words = [program, "images", *filters, "--filter", "dangling=false", "--format", "{{.Repository}}:{{.Tag}}"]
    found = [line for line in proc.run(words).text.splitlines() if "<none>" not in line]
    if not found:
        raise EnvironmentLacks(
            f"there is no image of {profile.stack} for {wanted} on {platform.oci}",
            why=f"looked in: {program}",
            do=f"invoke build --target {wanted}",
        )
    said = _labels(program, found[0])
    if said.get(f"{OURS}test-only"):
        warn(f"{found[0]} is for tests: no machine of {platform.oci} has the GPU that it was built for")
    return Image(found[0], wanted, program, _left_out(said))  # Docker lists the newest first


def planned(profile: Profile, tag: str, *, of_build: str, target: Target | None = None) -> Image:
    """The image to print a command for: as `find` has it, else the name that a build would give."""
    try:
        return find(profile, tag=tag, target=target)
    except EnvironmentLacks as lacks:
        say(f"  not here yet: {lacks.what}; {lacks.do or 'invoke build'}")
        return Image(tag or of_build, target or profile.targets[0])


def _docker() -> tuple[str, str]:
    refused = "docker is not installed"
    for client in clients():
        try:
            proc.run([client.program, "version", "--format", "{{.Server.Version}}"])
        except SparkforgeError as silent:
            refused = silent.why.splitlines()[-1]
        else:
            return client.program, ""
    return "", refused


def _named(profile: Profile, program: str, tag: str) -> Image:
    said = _labels(program, tag)
    target = said.get(f"{OURS}target", profile.targets[0])
    of_it = next((known for known in profile.targets if known == target), None)
    if of_it is None or said.get(f"{OURS}stack", profile.stack) != profile.stack:
        raise BadInput(
            f"{tag} is no image for {profile.name}",
            why=f"it is {said.get(f'{OURS}stack')} {target}; wanted: {profile.stack} {' or '.join(profile.targets)}",
            do="invoke profiles",
        )
    return Image(tag, of_it, program, _left_out(said))


def _left_out(labels: Mapping[str, str]) -> frozenset[str]:
    return frozenset(filter(None, labels.get(PARTS_LEFT_OUT, "").split(",")))


def _labels(program: str, tag: str) -> dict[str, str]:
    done = proc.run([program, "image", "inspect", "--format", "{{json .Config.Labels}}", tag], check=False)
    if done.code:
        raise EnvironmentLacks(f"there is no image {tag}", why=f"looked in: {program}", do="invoke build")
    return dict(json.loads(done.text) or {})


def run(services: Sequence[Service], image: Image, *, dry: bool = False) -> None:
    """Run the container in the foreground until it ends; its log is ours.

    Raises:
        BadInput: the profile takes more machines than this one.
        CheckFailed: the server ended by itself.
    """
    if len(services) > 1:
        raise BadInput(
            f"{services[0].name} is one of {len(services)} machines", why="each runs its own command", do="add --print"
        )
    (service,) = services
    words = render.argv(service, image.program)
    say(f"$ {proc.quoted(words)}")
    if dry:
        return
    for mount in service.mounts:
        if mount.make:
            Path(mount.source.value).mkdir(parents=True, exist_ok=True)
    done = proc.run(words, stream=True, check=False)
    if done.code == _KILLED:
        raise CheckFailed(
            "the container was killed",
            why="by the kernel, whose memory the GPU shares on a Spark, unless somebody did",
            do="sudo dmesg | grep -i oom, then --flags '--gpu-memory-utilization 0.6'",
        )
    if done.code not in _STOPPED:
        raise CheckFailed(f"the container ended with status {done.code}", why="its own words stand above")
