# Pure: no MPI, threads, clock or environment.
"""The part of a feature on one memory device that decides, and what it may ask of its device."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeVar

from coarse.errors import CoarseError
from coarse.protocol.plan import Placement
from coarse.proxy.instructions import Instruction

Steps = list[Instruction]
Answer = TypeVar("Answer")


class DeviceKit(Protocol):
    """Requests of a feature's machine to its device; ProxyProtocol is one."""

    device: int
    placement: Placement

    def allocate(self, nbytes: int, answer: Callable[[int, str], Steps], *, is_of_key: bool = False) -> Steps:
        """Find room for a region and have it made real; `answer` gets its offset, or a refusal."""
        ...

    def free(self, offset: int) -> None:
        """Give back what `allocate` found."""
        ...


class FeatureMachine:
    """A feature on one memory device: records and events in, instructions out. Pure.

    A device makes it when the feature's first record comes, and tells it then who has left and died before.
    """

    handlers: Mapping[type, Callable[..., Steps]] = MappingProxyType({})
    """Function that returns what follows from a record, by its class."""

    def sizes(self, step: Instruction) -> object:
        """Return what the costs of an instruction are counted by (FeatureSpec.costs), where modelled time is kept."""
        return None

    def on_leave(self, client: int) -> Steps:
        """Return what follows when a worker has shut down; it is dropped where a death is known."""
        return []

    def on_dead(self, rank: int, text: str) -> Steps:
        """Return what follows when a rank is gone."""
        return []


def asked(feature: str, device: int, do: Callable[..., Answer], *arguments: object) -> Answer:
    """Return what a part of a feature answers.

    Raises:
        CoarseError: whatever it raises, with the feature's name.
    """
    try:
        return do(*arguments)
    except CoarseError:
        raise
    except Exception as error:
        said = f"the feature {feature!r} on memory device {device} raised {error!r}; correct the feature"
        raise CoarseError(said) from error


Attached = Callable[[str, FeatureMachine], None]
"""Told the name of a feature and its machine before that is handed anything."""
