"""A service as a `docker run` to paste, as words, and as a compose file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from sparkforge.serving.service import KEY, PASSED, Service, ServiceMount, Word

_Line = tuple[str | Word, ...]


def shell(service: Service) -> str:
    """POSIX shell: make the folders that Docker would make as root, then `docker run`, one option a line."""
    lines = ["docker run --rm", *(_shelled(line) for line in _options(service)), shlex.quote(service.image)]
    lines += [_shelled(group) for group in service.words]
    made = [f"mkdir -p {_shelled((one.source,))}" for one in service.mounts if one.make]
    note = [f"# {service.note}"] if service.note else []
    return "\n".join([*note, *made, _key(service) + " \\\n    ".join(lines)])


def argv(service: Service) -> list[str]:
    """The same as words, for people and programs that read it."""
    words = ["docker", "run", "--rm"]
    for line in (*_options(service), (service.image,), *service.words):
        words += [word.value if isinstance(word, Word) else word for word in line]
    return words


def compose(service: Service) -> str:
    """A compose file (the compose specification; Docker Compose v2) that runs the same."""
    run = service.container
    said: dict[str, Any] = {
        "image": service.image,
        "container_name": service.name,
        "user": service.user.compose,
        "ipc": "host" if run.ipc == "host" else None,
        "shm_size": run.shm,
        "network_mode": "host" if run.network == "host" else None,
        "ports": None if run.network == "host" else [_published(service)],
        "devices": [f"{device}:{device}" for device in run.devices],
        "cap_add": list(run.capabilities),
        "ulimits": dict(run.ulimits),
        "environment": [_dollar(said) for said in _env(service)],
        "volumes": [_volume(mount) for mount in service.mounts],
        "deploy": {"resources": {"reservations": {"devices": [_GPUS]}}} if service.gpus else None,
        "command": [_dollar(word) for group in service.words for word in group],
        "restart": "unless-stopped",
    }
    whole = {
        "name": "sparkforge",
        "services": {service.name: {key: value for key, value in said.items() if value}},
        "volumes": {one.source.value: {"name": one.source.value} for one in service.mounts if one.volume},
    }
    key = f"start it with: {_key(service)}docker compose up" if service.key_file else ""
    note = "".join(f"# {line}\n" for line in (service.note, key) if line)
    return note + yaml.safe_dump(whole, sort_keys=False, width=2**16)


_GPUS = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def _options(service: Service) -> Iterator[_Line]:
    run = service.container
    yield "--name", service.name
    if service.gpus:
        yield "--gpus", "all"
    yield "--user", service.user
    if run.ipc == "host":
        yield "--ipc", "host"
    if run.shm:
        yield "--shm-size", run.shm
    yield ("--network", "host") if run.network == "host" else ("--publish", _published(service))
    yield from (("--device", device) for device in run.devices)
    yield from (("--cap-add", capability) for capability in run.capabilities)
    yield from (("--ulimit", f"{name}={limit}") for name, limit in run.ulimits.items())
    yield from (("--volume", _joined(mount)) for mount in service.mounts)
    yield from (("--env", said) for said in _env(service))


def _published(service: Service) -> str:
    host = f"[{service.host}]" if ":" in service.host else service.host
    return f"{host}:{service.container.port}:{service.container.port}"


def _key(service: Service) -> str:
    """In front of a command: its environment gets the API key, and no command line does."""
    return "" if service.key_file is None else f'{KEY}="$(cat {shlex.quote(str(service.key_file.absolute()))})" '


def _env(service: Service) -> list[str]:
    passed = [name for name in PASSED if name not in service.env]
    return [*passed, *(f"{name}={value}" for name, value in service.env.items())]


def _joined(mount: ServiceMount) -> Word:
    end = f":{mount.target}" + (":ro" if mount.read_only else "")
    return Word(mount.source.shell + end, mount.source.compose + end, mount.source.value + end)


def _volume(mount: ServiceMount) -> dict[str, Any]:
    said: dict[str, Any] = {
        "type": "volume" if mount.volume else "bind",
        "source": mount.source.compose,
        "target": mount.target,
    }
    return said | ({"read_only": True} if mount.read_only else {})


def _shelled(line: Sequence[str | Word]) -> str:
    return " ".join(_quoted(word) for word in line)


def _quoted(word: str | Word) -> str:
    if isinstance(word, str) or word.shell == word.value:
        return shlex.quote(word if isinstance(word, str) else word.value)
    return f'"{word.shell}"'


def _dollar(text: str) -> str:
    """Escaped, so that compose replaces nothing in it."""
    return text.replace("$", "$$")
