"""COARSE's own prototype (section IV): half of the ranks are workers, the other half GPUs that stand for CXL memory.

mpirun -n 4 python experiments/coarse_prototype.py

The workers replay a GPU's forward and backward, with real gradients of the model's shapes on the GPUs that are here.
The memory devices hold and add them on GPUs, too. Links take the time that the machine's model says: so the kind of
what comes out is *emulated*. Any number of GPUs will do, one included; it ends with status 2 where there is none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from coarse.emulation.account import ALLOWED_LATE_SHARE
from coarse.emulation.launch import EmulatedResult
from coarse.emulation.order import EmulationOrder
from coarse.errors import CoarseError, ConfigError
from coarse.gpu.available import gpus
from coarse.simulation.report import WorkerIteration
from coarse.simulation.training import simulate

if TYPE_CHECKING:  # importing it starts MPI, which is for ranks
    from mpi4py import MPI


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="aws-p3", help="whose links are emulated: a preset or a TOML file")
    parser.add_argument("--model", default="resnet50", help="resnet50 or bert-large")
    parser.add_argument("--batch", type=int, default=64, help="samples of each worker")
    parser.add_argument("--iterations", type=int, default=3, help="the first is not counted")
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    given = parser.parse_args(arguments)
    for name, least in (("batch", 1), ("iterations", 2)):
        if getattr(given, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(given, name)}")
    return given


def order_of(given: argparse.Namespace, num_ranks: int, num_gpus: int) -> EmulationOrder:
    """The run that the command line asks for, on so many ranks and GPUs; ConfigError where that cannot be."""
    if num_ranks < 2 or num_ranks % 2:
        raise ConfigError(
            f"half of the ranks are workers and half memory devices, so there must be an even number, got {num_ranks}; "
            "start it by mpirun -n 4"
        )
    return EmulationOrder(
        machine=given.machine,
        model=given.model,
        gpu=None,
        batch=given.batch,
        precision="fp32",
        mode="coarse",
        num_workers=num_ranks // 2,
        num_devices=num_ranks // 2,
        num_iterations=given.iterations,
        num_gpus=num_gpus,
        collective="ring",
        policy="devices",
    ).decided()


def lines_of(result: EmulatedResult, names: Sequence[str], simulated_s: float) -> list[str]:
    """What came out, for people."""
    order = result.order
    places = ", ".join(f"GPU {number} ({name})" for number, name in enumerate(names))
    return [
        f"{order.model}, batch {order.batch}, on {order.machine}: {order.num_workers} workers and {order.num_devices} "
        f"memory devices, gradients and sums on {places}",
        f"iteration {result.iteration_s * 1e3:.2f} ms, exposed communication {result.exposed_s * 1e3:.2f} ms "
        f"(emulated; simulated {simulated_s * 1e3:.2f} ms)",
        f"{result.num_transfers} transfers, {result.num_late} late",
    ]


def result_of(order: EmulationOrder, found: Mapping[str, Any]) -> EmulatedResult:
    """What worker 0 reports."""
    return EmulatedResult(
        order=order,
        iterations=tuple(WorkerIteration(**row) for row in found["iterations"]),
        num_transfers=found["num_transfers"],
        num_late=found["num_late"],
        worst_late_s=found["worst_late_s"],
    )


def agreed_order(given: argparse.Namespace, world: MPI.Intracomm) -> tuple[EmulationOrder, list[str]]:
    """The run, and the names of the GPUs here; ConfigError on all ranks, in the words of the first that has one."""
    from coarse.transport.agreement import agree

    order, names, error = None, [], None
    try:
        names = [info.name for info in gpus().infos()]
        order = order_of(given, world.Get_size(), len(names))
    except CoarseError as refused:
        error = refused
    agree(world, error)
    assert order is not None
    return order, names


def main() -> None:
    """One rank's part."""
    given = parse_arguments()
    from coarse.emulation.run import run_rank
    from coarse.runtime import end_job
    from coarse.transport.comm_world import WHOLE

    world = WHOLE.Dup()
    try:
        order, names = agreed_order(given, world)
    except CoarseError as refused:
        if world.Get_rank() == 0:
            print(f"coarse_prototype.py: {refused}", file=sys.stderr)
        world.Barrier()
        sys.exit(2)
    try:
        found = run_rank(order)
    except CoarseError as error:
        sys.excepthook(type(error), error, error.__traceback__)
        end_job()
        raise
    if found is None:
        return
    result = result_of(order, found)
    print("\n".join(lines_of(result, names, simulate(order.job()).iteration_s)))
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({**found, "gpus": names}, indent=1) + "\n")
    if result.late_share > ALLOWED_LATE_SHARE:
        print(f"over {ALLOWED_LATE_SHARE:.0%} of transfers were late: this is no result", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
