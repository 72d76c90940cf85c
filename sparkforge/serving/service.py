"""A container that serves a profile, before it becomes a launch, a `docker run` or a compose file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparkforge.core.console import warn
from sparkforge.core.errors import BadInput
from sparkforge.engine import engine
from sparkforge.inputs.recipes import Target
from sparkforge.serving.profile import Cluster, ContainerOptions
from sparkforge.serving.words import PORT, Command

HOME = "/home/vllm"
CACHE = "sparkforge-cache"
# Passed on by name, so that no command line and no file holds a token, a key or a setting of the user's.
KEY = "VLLM_API_KEY"  # vLLM's own: clients must send it as a bearer token
PASSED = ("HF_TOKEN", "HF_HUB_OFFLINE", KEY)
LOOPBACK = "127.0.0.1"
_ENTRYPOINT = "/opt/sparkforge/entrypoint"
# Bytes of Ray's object store. vLLM does not need it, and by default Ray takes a share of the memory.
_OBJECTS = 1_000_000_000


@dataclass(frozen=True)
class Word:
    """A word with a spelling for each place that it goes to.

    Attributes:
        shell: for a shell, inside double quotes.
        compose: for a compose file.
        value: here and now.
    """

    shell: str
    compose: str
    value: str

    @classmethod
    def plain(cls, text: str) -> Word:
        """The same everywhere."""
        quoted = "".join(f"\\{one}" if one in '\\"$`' else one for one in text)
        return cls(quoted, text.replace("$", "$$"), text)


@dataclass(frozen=True)
class ServiceMount:
    """A folder of the host, or a volume.

    Attributes:
        source: the folder, or the volume's name.
        target: in the container.
        volume: whether it is a volume.
        read_only: whether the container may not write.
        make: make the folder first; Docker would make it as root's.
    """

    source: Word
    target: str
    volume: bool = False
    read_only: bool = False
    make: bool = False


@dataclass(frozen=True)
class Service:
    """A container to run.

    Attributes:
        name: of the container.
        image: its tag.
        gpus: give it all GPUs.
        container: options of the profile.
        env: variables.
        mounts: folders and volumes.
        words: after the image's name, a group for each line.
        note: for people: where and when to run it.
        host: address of this machine on which its port is published.
        key_file: that holds the API key; None takes the environment's, if there is one.
        user: that runs it.
    """

    name: str
    image: str
    gpus: bool
    container: ContainerOptions
    env: Mapping[str, str]
    mounts: tuple[ServiceMount, ...]
    words: tuple[tuple[str, ...], ...]
    note: str = ""
    host: str = LOOPBACK
    key_file: Path | None = None
    user: Word = field(default_factory=lambda: Word("$(id -u):0", f"{os.getuid()}:0", f"{os.getuid()}:0"))


def hub() -> Word:
    """The user's model cache."""
    here = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    return Word("${HF_HOME:-$HOME/.cache/huggingface}", "${HF_HOME:-${HOME}/.cache/huggingface}", here)


def services(
    command: Command,
    image: str,
    target: Target,
    *,
    model: Path | None = None,
    host: str = LOOPBACK,
    key_file: Path | None = None,
) -> tuple[Service, ...]:
    """The container of a profile, or one for each of its machines in the order of their start.

    Args:
        command: what the profile runs.
        image: tag.
        target: of the image; `serve` gets the GPUs.
        model: folder on this machine, for a profile whose model is a folder.
        host: address of this machine on which the server is reached.
        key_file: that holds the API key.
    """
    profile = command.profile
    if profile.container.network == "host" and not any(group[0].startswith("--host") for group in command.groups):
        command = replace(command, groups=(*command.groups, ("--host", host)))
    mounts = [
        ServiceMount(hub(), f"{HOME}/.cache/huggingface", make=True),
        ServiceMount(Word.plain(CACHE), f"{HOME}/.cache/sparkforge", volume=True),
    ]
    if model is not None:
        mounts.append(ServiceMount(Word.plain(str(model)), profile.model, read_only=True))
    port = profile.container.port
    one = Service(
        name=f"sparkforge-{profile.name}" + (f"-{port}" if port != PORT else ""),
        image=image,
        gpus=target == "serve",
        container=profile.container,
        env=dict(command.env),
        mounts=tuple(mounts),
        words=((profile.model,), *command.groups),
        host=host,
        key_file=key_file,
    )
    return (one,) if profile.cluster is None else _machines(one, command, profile.cluster)


def launch(service: Service) -> engine.Launch:
    """The container as an engine runs it here and now.

    Raises:
        BadInput: the file of the API key cannot be read, or is empty.
    """
    run = service.container
    passed = {name: os.environ[name] for name in PASSED if name in os.environ and name not in service.env}
    if service.key_file is not None:
        passed[KEY] = _key(service.key_file)
    if service.host != LOOPBACK and KEY not in passed:
        warn(f"everybody who reaches {service.host} can use this server: --api-key-file FILE, or {KEY}")
    return engine.Launch(
        service.image,
        [word for group in service.words for word in group],
        env={**passed, **service.env},
        user=service.user.value,
        mounts=[engine.Mount(Path(one.source.value), one.target, read_only=one.read_only) for one in service.mounts],
        ports=() if run.network == "host" else (run.port,),
        publish=service.host,
        gpus=service.gpus,
        network="host" if run.network == "host" else None,
        ipc="host" if run.ipc == "host" else None,
        shm=run.shm,
        devices=run.devices,
        capabilities=run.capabilities,
        ulimits=run.ulimits,
        name=service.name,
    )


def _key(file: Path) -> str:
    try:
        key = file.read_text().strip()
    except OSError as refused:
        raise BadInput(f"the API key in {file} cannot be read", why=str(refused.strerror)) from refused
    if not key:
        raise BadInput(f"{file} is empty", why="it should hold the API key", do=f"openssl rand -hex 24 >{file}")
    return key


def _machines(one: Service, command: Command, cluster: Cluster) -> tuple[Service, ...]:
    head, worker = cluster.addresses
    start = ["ray", "start", "--num-gpus=1", f"--object-store-memory={_OBJECTS}"]
    as_head = [*start, "--head", f"--node-ip-address={head}", f"--port={cluster.port}", "--disable-usage-stats"]
    # The second entrypoint is for the health check, which asks for the server that an entrypoint started.
    script = f"{shlex.join(as_head)} && exec {_ENTRYPOINT} {shlex.join(command.words)}"
    as_worker = [*start, f"--address={head}:{cluster.port}", f"--node-ip-address={worker}", "--block"]

    def on(address: str, suffix: str, words: tuple[tuple[str, ...], ...], note: str) -> Service:
        env = {**one.env, **_link(cluster, address)}
        return replace(one, name=f"{one.name}-{suffix}", env=env, words=words, note=note)

    return (
        on(head, "head", (("sh", "-c", script),), f"on {head}, first: it serves, and waits half an hour for the other"),
        on(
            worker,
            "worker",
            (("ray", "start"), *((word,) for word in as_worker[2:])),
            f"on {worker}, once Ray runs on the first",
        ),
    )


def _link(cluster: Cluster, address: str) -> dict[str, str]:
    """Variables that make Ray, NCCL, Gloo and UCX use the link."""
    return {
        "VLLM_HOST_IP": address,
        "NCCL_SOCKET_IFNAME": cluster.link,
        "NCCL_IB_HCA": ",".join(cluster.hcas),
        "GLOO_SOCKET_IFNAME": cluster.link,
        "TP_SOCKET_IFNAME": cluster.link,
        "UCX_NET_DEVICES": cluster.link,
        # Ray kills workers when the machine's memory is nearly full; weights and cache of a Spark are in that memory.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
