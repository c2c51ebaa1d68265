# Pure: no MPI, threads, clock or environment.
"""Deciding part of a feature on one memory device, and its requests to the device."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeVar

from coarse.errors import CoarseError
from coarse.protocol.plan import Placement
from coarse.proxy.instructions import Instruction, Instructions

Answer = TypeVar("Answer")


class DeviceKit(Protocol):
    """Requests of a feature's machine to its device; ProxyProtocol is one."""

    device: int
    placement: Placement

    def allocate(
        self, nbytes: int, answer: Callable[[int, str], Instructions], *, is_of_key: bool = False
    ) -> Instructions:
        """Find room for a region and have it made real; `answer` gets its offset, or a refusal."""
        ...

    def free(self, offset: int) -> None:
        """Free a region that `allocate` found."""
        ...


class FeatureMachine:
    """Pure state machine of a feature on one memory device: records and events in, instructions out.

    A device makes it when the feature's first record arrives, and tells it then which ranks left or died earlier.
    """

    handlers: Mapping[type, Callable[..., Instructions]] = MappingProxyType({})
    """Function that returns what follows from a record, by its class."""

    def sizes(self, step: Instruction) -> object:
        """Return the context for the costs of an instruction (FeatureSpec.costs), where modelled time is kept."""
        return None

    def on_leave(self, client: int) -> Instructions:
        """Return what follows when a worker has shut down; the steps are dropped if a death is known."""
        return []

    def on_dead(self, rank: int, text: str) -> Instructions:
        """Return what follows when a rank has died."""
        return []


def asked(feature: str, device: int, do: Callable[..., Answer], *arguments: object) -> Answer:
    """Return what a part of a feature answers.

    Raises:
        CoarseError: the part has raised any exception; the text has the feature's name.
    """
    try:
        return do(*arguments)
    except CoarseError:
        raise
    except Exception as error:
        said = f"the feature {feature!r} on memory device {device} raised {error!r}; correct the feature"
        raise CoarseError(said) from error


Attached = Callable[[str, FeatureMachine], None]
"""Function that gets a feature's name and machine before the machine gets any event."""
