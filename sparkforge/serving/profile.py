"""What a profile is: a model, the flags and variables that serve it, and the parts that decide which kernels run."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sparkforge.inputs.recipes import Target

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9.-]*$", description="lower case, digits, dots, dashes")]
Flag = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9-]*$", description="a long flag without its dashes")]
Variable = Annotated[str, msgspec.Meta(pattern=r"^[A-Z][A-Z0-9_]*$", description="name of a variable")]
Scalar = str | int | float | bool
FlagValue = Scalar | list[Scalar] | dict[str, Scalar]
Flags = dict[Flag, FlagValue]
Env = dict[Variable, str]


class ResultChecks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Checks of a result.

    Attributes:
        result: a file in results/, relative to the checkout.
        checks: their names.
    """

    result: str
    checks: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting that decides which kernels run, and its evidence.

    Attributes:
        summary: one line for people.
        rows: of the README's feature table.
        unproved: what nobody has shown yet.
        flags: of `vllm serve`.
        env: variables.
        soak: passed soaks; a part without any is off by default.
        held_back: why a soaked part is off by default all the same (YAML reads `off` as a boolean).
        shown: other evidence.
        modules: of FlashInfer that it needs and that are compiled ahead of time; `*` stands for any text.
    """

    summary: str
    rows: tuple[str, ...]
    unproved: Annotated[str, msgspec.Meta(min_length=1)]
    flags: Flags = {}
    env: Env = {}
    soak: ResultChecks | None = None
    held_back: str = ""
    shown: tuple[ResultChecks, ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def on(self) -> bool:
        """Whether it is on by default."""
        return self.soak is not None and not self.held_back


class ContainerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How its container is run, beyond what every profile has (the model cache, the cache volume, the user).

    Attributes:
        ipc: of the host, for shared memory without a limit; else private.
        shm: size of /dev/shm where ipc is private, as Docker takes it.
        network: host, or bridge with published ports.
        port: that the server listens on, and the host's.
        devices: device nodes.
        capabilities: that are added.
        ulimits: limits by name, -1 for none.
    """

    ipc: Literal["host", "private"] = "host"
    shm: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+[kmg]$")] | None = None
    network: Literal["bridge", "host"] = "bridge"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8000
    devices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    ulimits: dict[str, int] = {}


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two machines and the link between them.

    Attributes:
        addresses: of the link, the machine that is asked first.
        link: name of its network interface, the same on both.
        hcas: names of its RoCE devices, the same on both.
        port: of Ray's head.
    """

    addresses: tuple[str, str]
    link: str
    hcas: tuple[str, ...]
    port: int = 6379


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to serve one model on a stack.

    Attributes:
        name: equal to the file's.
        summary: one line for people.
        stack: whose images it is for.
        targets: of these images.
        model: OWNER/NAME of a hub, or a folder in the container.
        parts: names in recipes/profiles/parts.yaml; later ones win.
        unproved: what of its own flags nobody has shown.
        default_of: targets whose images serve it when they are given no words.
        revision: a commit, branch or tag of the model.
        made: what makes the model's folder on this machine.
        served: names that clients may use; the model's where there are none.
        flags: of `vllm serve`.
        env: variables.
        container: how its container is run.
        cluster: where it takes two machines.
    """

    name: Name
    summary: str
    stack: str
    targets: tuple[Target, ...]
    model: str
    parts: tuple[Name, ...]
    unproved: tuple[str, ...]
    default_of: tuple[Target, ...] = ()
    revision: str | None = None
    made: Literal["tiny"] | None = None
    served: tuple[str, ...] = ()
    flags: Flags = {}
    env: Env = {}
    container: ContainerOptions = ContainerOptions()
    cluster: Cluster | None = None
