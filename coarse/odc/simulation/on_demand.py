# Pure: no MPI, threads, clock or environment.
"""Mode odc on a machine: minibatches of one microbatch, by the machines that run live."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from coarse.errors import ConfigError
from coarse.odc.layout import OdcDeclaration, OdcUnit
from coarse.odc.simulation.machines import Microbatch, SimulatedOdc
from coarse.odc.simulation.sites import host_site
from coarse.protocol.dtypes import DType
from coarse.protocol.plan import Placement
from coarse.simulation.sharded.report import PredictedIteration
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.simulation.sharded.units import Unit
from coarse.strategy.builtin import Coarse
from coarse.strategy.sharding import SUM_TOP, Sum

MOST_WORKERS = 128
"""Each of them is simulated, and every piece of each. No few nodes can stand for many, since a device sends one piece
after the other, and the more nodes there are, the longer one waits for those to other nodes."""
_MINIBATCHES = 2
"""At least; the last is shown."""
_NUM_SLOTS = 4
"""Pieces of a worker that may be under way, as live."""


def simulate_on_demand(scenario: ShardedScenario) -> PredictedIteration:
    """Simulate minibatches of a scenario in mode odc, with a memory device on each node, int64 sums and no cache.

    Raises:
        ConfigError: more workers than are simulated.
        CapacityError: a GPU's memory is too small.
    """
    num_workers, num_nodes = scenario.num_gpus, scenario.num_nodes
    if num_workers > MOST_WORKERS:
        raise ConfigError(
            f"mode odc is simulated worker by worker, up to {MOST_WORKERS}, got {num_workers}; ask for fewer",
            key="workers",
        )
    memory = scenario.require_fit()
    nodes = tuple(worker // scenario.gpus_per_node for worker in range(num_workers))
    placement = Placement(
        client_nodes=nodes,
        device_nodes=tuple(range(num_nodes)),
        local_proxies=nodes,
        ranks=tuple(range(num_workers + num_nodes)),
        planner=Coarse(),
        num_sync_groups=1,
    )
    dtype = DType.BFLOAT16 if scenario.precision.itemsize == 2 else DType.FLOAT32
    units = scenario.units
    declaration = OdcDeclaration(
        members=tuple(range(num_workers)),
        units=tuple(_declared(unit, num_workers, dtype) for unit in units),
        sum=Sum.INT64,
        cache_bytes=0,
        top=SUM_TOP,
        num_slots=_NUM_SLOTS,
    )
    site = host_site(scenario.machine, num_nodes, scenario.gpus_per_node)
    count = max(_MINIBATCHES, scenario.num_unlike)
    factors = [scenario.factors(iteration) for iteration in range(count)]
    work = [[[_microbatch(units, factor)] for factor in each] for each in factors]
    changes = scenario.disturbances.changes(site.links)
    run = SimulatedOdc(placement, declaration, site, changes).run(work)
    iterations_s = tuple(end - begin for begin, end in pairwise((0.0, *run.ended_s)))
    return PredictedIteration(
        iteration_s=iterations_s[-1],
        compute_s=fmean(factors[-1]) * sum(unit.forward_s + unit.backward_s for unit in units),
        idle_s=fmean(run.ended_s[-1] - called_s for called_s in run.called_s[-1]),
        uses=(("a node to others", max(run.sent_bytes) / count),),
        memory=memory,
        iterations_s=iterations_s if scenario.disturbances.are_unlike else (),
    )


def _microbatch(units: Sequence[Unit], factor: float) -> Microbatch:
    """A worker's, who computes so many times longer."""
    return Microbatch(
        tuple(factor * unit.forward_s for unit in units), tuple(factor * unit.backward_s for unit in units)
    )


def _declared(unit: Unit, num_workers: int, dtype: DType) -> OdcUnit:
    """A unit as its workers state it: shards and rows of equal size."""
    shard, trained = (-(-nbytes // (num_workers * dtype.itemsize)) for nbytes in (unit.nbytes, unit.trainable_nbytes))
    return OdcUnit(shard * dtype.itemsize, (trained,) if trained else (), int(dtype))
