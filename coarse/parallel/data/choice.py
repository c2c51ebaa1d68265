"""Which reducer a strategy asks for: memory devices, the workers' all-reduce, or both (dual synchronisation)."""

from typing import TYPE_CHECKING

from coarse.parallel.data.reducer import DeviceReducer, Reducer, may_share
from coarse.parallel.data.switch import Switch
from coarse.strategy.strategy import Strategy

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime


def reducer_of(
    runtime: "Runtime",
    prefix: str,
    switch: Switch | None = None,
    *,
    gpu: int | None = None,
    strategy: Strategy | None = None,
) -> Reducer:
    """That of a switch, or the one that a strategy, by default the job's, asks for; `prefix` stands before its keys'
    names. Where buckets are on a GPU, `gpu`, its copies count in what is measured."""
    if switch is not None:
        from coarse.parallel.data.allreduce import AllreduceReducer
        from coarse.parallel.data.switch_stream import SwitchStream

        client = runtime.require_client()
        return AllreduceReducer(
            SwitchStream(client, switch, runtime.placement), client.protocol.client, client.count_push, "a switch"
        )
    strategy = strategy or runtime.strategy
    if strategy.uses_devices and not times_rounds(runtime, strategy):
        return DeviceReducer(runtime.require_client())
    from coarse.parallel.data.allreduce import AllreduceReducer  # what calls MPI, and what decides by simulation
    from coarse.parallel.data.allreduce_stream import AllreduceStream
    from coarse.parallel.data.dual import DualReducer
    from coarse.parallel.data.split_chooser import SplitChooser

    client = runtime.require_client()
    stream = AllreduceStream(runtime.worker_comm, client.link, by_ring=runtime.config.worker_collective == "ring")
    if not strategy.uses_devices:
        return AllreduceReducer(stream, client.protocol.client, client.count_push)
    return DualReducer(runtime, stream, SplitChooser(runtime, stream, prefix, gpu, strategy), prefix)


def times_rounds(runtime: "Runtime", strategy: Strategy) -> bool:
    """Whether reducers have a timer, which wants to know when gradients come."""
    return strategy.uses_devices and bool(may_share(runtime, strategy) or strategy.profile_every_steps)
