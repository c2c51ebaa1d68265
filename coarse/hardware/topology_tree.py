# Pure: no MPI, threads, clock or environment.
"""Tree of one node: its host, sockets, switches and devices, and the places between two of them."""

import enum
from dataclasses import dataclass
from functools import cached_property

from coarse.errors import ConfigError
from coarse.hardware.quantities import require_name
from coarse.hardware.wire import Wire

HOST = "host"
"""Root of the tree: the sockets of a node meet there, and its network card hangs there."""


class PlaceKind(enum.Enum):
    """Kind of a place; the values are the names in machine files."""

    SOCKET = "socket"
    SWITCH = "switch"
    GPU = "gpu"
    MEMORY = "memory"


DEVICES = (PlaceKind.GPU, PlaceKind.MEMORY)
PARENTS = {
    PlaceKind.SOCKET: "the host",
    PlaceKind.SWITCH: "a socket or a switch",
    PlaceKind.GPU: "a socket or a switch",
    PlaceKind.MEMORY: "a socket or a switch",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Point of the tree and the wire that leads up from it."""

    name: str
    kind: PlaceKind
    parent: str
    wire: Wire
    crossing: Wire | None = None
    """Wire that a transfer crosses if it comes up to this place from one child and leaves to another."""
    staging: Wire | None = None
    """Wire that every transfer crosses that is staged in this place's memory (a socket's)."""

    def __post_init__(self) -> None:
        require_name("name", self.name)
        if self.kind is not PlaceKind.SOCKET and self.staging is not None:
            raise ConfigError(
                f"staging is for sockets, which have memory, but {self.name!r} is a {self.kind.value}; "
                "remove it",
                key="staging",
            )

    def key(self, setting: str) -> str:
        """Return the name of a setting of this place in errors of the whole tree."""
        return f"{self.kind.value}.{self.name}.{setting}"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Places of a node; each leads up to the host."""

    places: tuple[Place, ...]

    def __post_init__(self) -> None:
        names = [HOST, *(place.name for place in self.places)]
        for place in self.places:
            if names.count(place.name) > 1:
                raise ConfigError(f"place {place.name!r} stands twice in the tree; rename one", key=place.key("name"))
            self._check_parent(place)
        for place in self.places:
            self._check_loop(place)
        for kind in DEVICES:
            given = [place for place in self.places if place.kind is kind]
            for number, place in enumerate(given):
                if place.name != f"{kind.value}{number}":
                    raise ConfigError(
                        f"{kind.value}s must be named {kind.value}0, {kind.value}1, ... in this order, "
                        f"got {place.name!r} as number {number}; rename it",
                        key=place.key("name"),
                    )
        if not self.gpus:
            raise ConfigError("the machine has no GPU, so no rank has a device; add a gpu", key="gpu")

    @cached_property
    def by_name(self) -> dict[str, Place]:
        """Places by name."""
        return {place.name: place for place in self.places}

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs, in order."""
        return tuple(place.name for place in self.places if place.kind is PlaceKind.GPU)

    @cached_property
    def memories(self) -> tuple[str, ...]:
        """Names of the memory devices that are no GPUs, in order."""
        return tuple(place.name for place in self.places if place.kind is PlaceKind.MEMORY)

    def ancestors(self, name: str) -> tuple[str, ...]:
        """Return `name`, its parent, and so on, up to the host."""
        chain = [name]
        while chain[-1] != HOST:
            chain.append(self.by_name[chain[-1]].parent)
        return tuple(chain)

    def socket_of(self, name: str) -> str:
        """Return the socket below which a place stands."""
        return self.ancestors(name)[-2]

    def meeting_place(self, source: str, target: str, *, staged: bool) -> str:
        """Return the lowest place above both; a staged transfer turns in the memory of a socket or higher."""
        above_target = set(self.ancestors(target))
        common = [name for name in self.ancestors(source) if name in above_target]
        if not staged:
            return common[0]
        turning = (HOST, self.socket_of(source))
        return next(name for name in common if name in turning)

    def _check_parent(self, place: Place) -> None:
        if place.parent == HOST:
            fits = place.kind is PlaceKind.SOCKET
        elif place.parent not in self.by_name:
            raise ConfigError(
                f"parent of {place.name!r} must be a place of the machine, got {place.parent!r}; "
                f"there are: {', '.join([HOST, *self.by_name])}",
                key=place.key("parent"),
            )
        else:
            above = self.by_name[place.parent].kind
            fits = place.kind is not PlaceKind.SOCKET and above not in DEVICES
        if not fits:
            raise ConfigError(
                f"parent of {place.name!r} must be {PARENTS[place.kind]}, got {place.parent!r}; "
                "hang it elsewhere",
                key=place.key("parent"),
            )

    def _check_loop(self, place: Place) -> None:
        chain = [place.name]
        while chain[-1] != HOST:
            chain.append(self.by_name[chain[-1]].parent)
            if chain[-1] in chain[:-1]:
                raise ConfigError(
                    f"the parents of {place.name!r} run in a loop: {' -> '.join(chain)}; "
                    "let one of them hang on a socket",
                    key=place.key("parent"),
                )
