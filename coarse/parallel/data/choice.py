"""Choice of the reducer for a strategy: memory devices, the workers' all-reduce, or both (dual sync)."""

from typing import TYPE_CHECKING

from coarse.parallel.data.pass_timer import timer_of_points
from coarse.parallel.data.reducer import DeviceReducer, Reducer, ReducerSource, may_share
from coarse.parallel.data.sent import WiredReducer, in_turns
from coarse.strategy.strategy import Strategy, require_lag

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime


def reducer_of(
    runtime: "Runtime",
    prefix: str,
    source: ReducerSource | None = None,
    *,
    gpu: int | None = None,
    strategy: Strategy | None = None,
    as_it_is: bool = False,
) -> Reducer:
    """Return the reducer of a source, or the one that a strategy, by default the job's, asks for.

    `prefix` stands before its keys' names. If buckets are on a GPU, `gpu`, its copies count in measurements. With
    `as_it_is` the summed values are no gradients, and strategies' wires and lags are not for them.
    """
    if source is not None:
        return source.reducer(runtime)
    strategy = strategy or runtime.strategy
    if as_it_is or not changes_sums(strategy):
        return _by_rounds(runtime, prefix, gpu, strategy, 0)
    return wired(_by_rounds(runtime, prefix, None, strategy, require_lag(strategy)), runtime, strategy)


def changes_sums(strategy: Strategy) -> bool:
    """Return whether a strategy's gradients travel otherwise than as they are, or late."""
    return strategy.has_wires or require_lag(strategy) > 0


def wired(reducer: Reducer, runtime: "Runtime", strategy: Strategy) -> Reducer:
    """Return the reducer behind a strategy's wires; itself without any."""
    if not strategy.has_wires:
        return reducer
    worker = runtime.require_client().protocol.client
    return WiredReducer(reducer, strategy, worker, runtime.placement.num_clients)


def _by_rounds(runtime: "Runtime", prefix: str, gpu: int | None, strategy: Strategy, lag: int) -> Reducer:
    """Return the reducer of a strategy without wires: several in turns, if sums come late."""
    client, turns = runtime.require_client(), range(lag + 1)
    if strategy.uses_devices and not times_rounds(runtime, strategy):
        return in_turns([DeviceReducer(client, timer_of_points(client.link)) for _ in turns])
    from coarse.parallel.data.allreduce import AllreduceReducer  # what calls MPI, and what decides by simulation
    from coarse.parallel.data.allreduce_stream import AllreduceStream
    from coarse.parallel.data.dual import DualReducer
    from coarse.parallel.data.split_chooser import SplitChooser

    stream = AllreduceStream(runtime.worker_comm, client.link, by_ring=runtime.config.worker_collective == "ring")
    if not strategy.uses_devices:
        timer = timer_of_points(client.link)
        rank, count = client.protocol.client, client.count_push
        return in_turns([AllreduceReducer(stream, rank, count, timer=timer) for _ in turns])
    chooser = SplitChooser(runtime, stream, prefix, gpu, strategy)
    prefixes = [f"{prefix}late {turn}/" if turn else prefix for turn in turns]
    return in_turns([DualReducer(runtime, stream, chooser, each) for each in prefixes])


def times_rounds(runtime: "Runtime", strategy: Strategy) -> bool:
    """Return whether reducers have a timer, which is told when gradients come."""
    return strategy.uses_devices and bool(may_share(runtime, strategy) or strategy.profile_every_steps)
