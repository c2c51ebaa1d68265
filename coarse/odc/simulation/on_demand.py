# Pure: no MPI, threads, clock or environment.
"""Mode odc on a machine: minibatches of one microbatch, by the live machines, of all nodes or of some."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from coarse.odc.layout import OdcDeclaration, OdcUnit
from coarse.odc.simulation.machines import Microbatch, OdcRun, SimulatedOdc
from coarse.odc.simulation.sites import host_site
from coarse.odc.simulation.stand_ins import NUM_STAND_INS, StandIns
from coarse.protocol.dtypes import DType
from coarse.protocol.plan import Placement
from coarse.simulation.sharded.report import PredictedIteration
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.simulation.sharded.units import Unit
from coarse.simulation.sites import Site
from coarse.strategy.builtin import Coarse
from coarse.strategy.sharding import SUM_TOP, Sum

MOST_WORKERS, MOST_NODES = 128, 8
"""Most workers and nodes that are simulated one by one, with every piece of each, since all pairs of nodes share the
links at once; where there are more, some nodes stand for all (StandIns)."""
_MINIBATCHES = 2
"""Least number of minibatches; the last is shown."""
_NUM_SLOTS = 4
"""Number of pieces of a worker that may be under way, as live."""


def simulate_on_demand(scenario: ShardedScenario) -> PredictedIteration:
    """Simulate minibatches in mode odc, with a memory device on each node, int64 sums and no cache.

    Raises:
        CapacityError: a GPU's memory is too small.
    """
    scenario.require_fit()
    is_large = scenario.num_gpus > MOST_WORKERS or scenario.num_nodes > MOST_NODES
    if is_large and scenario.num_nodes > NUM_STAND_INS:
        return simulate_stand_ins(scenario)
    return simulate_each(scenario)


def simulate_each(scenario: ShardedScenario) -> PredictedIteration:
    """Simulate every worker."""
    factors = _all_factors(scenario)
    site = host_site(scenario.machine, range(scenario.num_nodes), scenario.gpus_per_node)
    run = _simulated(scenario, site, scenario.num_nodes, factors)
    return _predicted(scenario, run, factors[-1], [1.0] * scenario.num_nodes)


def simulate_stand_ins(scenario: ShardedScenario) -> PredictedIteration:
    """Simulate some nodes that stand for all."""
    stand_ins = StandIns(
        scenario.machine, scenario.num_nodes, scenario.gpus_per_node, scenario.disturbances.degradations
    )
    factors, num_nodes = _all_factors(scenario), len(stand_ins.nodes)
    run = _simulated(scenario, stand_ins.site(), num_nodes, [stand_ins.factors(each) for each in factors])
    found = _predicted(scenario, run, factors[-1], stand_ins.weights)
    note = (
        f"odc: {num_nodes} nodes with {num_nodes * scenario.gpus_per_node} workers were simulated, which stand for "
        f"{scenario.num_nodes} with {scenario.num_gpus}."
    )
    uses = tuple((name, nbytes / stand_ins.far_share) for name, nbytes in found.uses)
    return replace(found, uses=uses, notes=(note,))


def _all_factors(scenario: ShardedScenario) -> list[tuple[float, ...]]:
    """Return each worker's factor on compute, by minibatch."""
    return [scenario.factors(iteration) for iteration in range(max(_MINIBATCHES, scenario.num_unlike))]


def _simulated(
    scenario: ShardedScenario, site: Site, num_nodes: int, factors: Sequence[Sequence[float]]
) -> OdcRun:
    """Run the minibatches of nodes on a site."""
    num_workers, units = num_nodes * scenario.gpus_per_node, scenario.units
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
    declaration = OdcDeclaration(
        members=tuple(range(num_workers)),
        units=tuple(_declared(unit, num_workers, dtype) for unit in units),
        sum=Sum.INT64,
        cache_bytes=0,
        top=SUM_TOP,
        num_slots=_NUM_SLOTS,
    )
    work = [[[_microbatch(units, factor)] for factor in each] for each in factors]
    return SimulatedOdc(placement, declaration, site, scenario.disturbances.changes(site.links)).run(work)


def _predicted(
    scenario: ShardedScenario, run: OdcRun, factors: Sequence[float], weights: Sequence[float]
) -> PredictedIteration:
    """Return the prediction of the last minibatch.

    Args:
        scenario: All workers.
        run: Simulated minibatches.
        factors: Factors of all workers in the last minibatch.
        weights: Number of nodes that each simulated node stands for.
    """
    units, per_node = scenario.units, scenario.gpus_per_node
    iterations_s = tuple(end - begin for begin, end in pairwise((0.0, *run.ended_s)))
    waited_s = [run.ended_s[-1] - called_s for called_s in run.called_s[-1]]
    weighted_s = sum(weights[place // per_node] * each_s for place, each_s in enumerate(waited_s))
    return PredictedIteration(
        iteration_s=iterations_s[-1],
        compute_s=fmean(factors) * sum(unit.forward_s + unit.backward_s for unit in units),
        idle_s=weighted_s / scenario.num_gpus,
        uses=(("a node to others", max(run.sent_bytes) / len(run.ended_s)),),
        memory=scenario.require_fit(),
        iterations_s=iterations_s if scenario.disturbances.are_unlike else (),
    )


def _microbatch(units: Sequence[Unit], factor: float) -> Microbatch:
    """Return the microbatch of a worker that computes `factor` times longer."""
    return Microbatch(
        tuple(factor * unit.forward_s for unit in units), tuple(factor * unit.backward_s for unit in units)
    )


def _declared(unit: Unit, num_workers: int, dtype: DType) -> OdcUnit:
    """Return a unit as its workers state it: shards and rows of equal size."""
    shard, trained = (-(-nbytes // (num_workers * dtype.itemsize)) for nbytes in (unit.nbytes, unit.trainable_nbytes))
    return OdcUnit(shard * dtype.itemsize, (trained,) if trained else (), int(dtype))
