"""Switch that adds buckets in the network: a memory device in place of SwitchML's or SHARP's switch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coarse.errors import ConfigError
from coarse.luwu.many_to_one.tree import Tree, plan_tree
from coarse.luwu.store.declaration import SUMS, WIRES, require_network
from coarse.luwu.store.fixed_point import EXPONENT_BLOCK
from coarse.parallel.data.reducer import Reducer, ReducerSource
from coarse.protocol.features import part_of
from coarse.protocol.plan import Placement

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime


_STREAM = "coarse.luwu.switch_stream:SwitchStream"


@dataclass(frozen=True, kw_only=True)
class Switch(ReducerSource):
    """All-reduce through a tree of switches: workers push, the root adds, and the sums go back.

    It follows SwitchML (NSDI 2021) and SHARP (COM-HPC 2016). All workers make the same statement.
    """

    sum: str = "float32"
    """Way of adding: "float32" in the order of workers within a device and of devices by their first worker (SHARP adds
    floats). "int32-switchml" (SwitchML's format) and "int64" add integers, with the same bits for any tree; workers
    agree on the exponent of each 1,024 elements by a separate all-reduce, one bucket ahead."""
    device: int | None = None
    """Memory device that is the root; by default one whose host has no workers, else the first."""
    below: Mapping[int, Sequence[int]] | None = None
    """Devices below each further switch; by default each host's device speaks with the root."""
    network: str = "mpi"
    """Network by which packets go from host to host: "mpi" or "udp"."""
    loss: float = 0.0
    """Share of datagrams of "udp" to be dropped on purpose."""

    def __post_init__(self) -> None:
        if self.sum not in SUMS:
            raise ConfigError(f"sum must be one of {SUMS}, got {self.sum!r}", key="sum")
        require_network(self.network, self.loss)

    @property
    def block_elements(self) -> int:
        """Number of elements that share an exponent, so that a large one takes the others' precision; 1: none."""
        return EXPONENT_BLOCK if WIRES[self.sum].is_integer else 1

    def reducer(self, runtime: "Runtime") -> Reducer:
        """Return the reducer that sums buckets through it."""
        from coarse.parallel.data.allreduce import AllreduceReducer

        client = runtime.require_client()
        return AllreduceReducer(
            part_of(_STREAM)(client, self, runtime.placement), client.protocol.client, client.count_push, "a switch"
        )

    def tree(self, placement: Placement) -> Tree:
        """Plan the tree through which the workers of a job are added.

        Raises:
            ConfigError: devices that there are not; see plan_tree.
        """
        root = self.device
        if root is None:
            apart = [one for one, host in enumerate(placement.device_nodes) if host not in placement.client_nodes]
            root = (*apart, 0)[0]
        if not 0 <= root < placement.num_devices:
            raise ConfigError(
                f"the switch is memory device {root}; there are {placement.num_devices}, counted from 0 on",
                key="device",
            )
        return plan_tree(root, 0, placement, self.below or {})
