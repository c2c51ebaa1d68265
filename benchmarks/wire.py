"""Bytes that each step of sharded training moves between nodes, counted at the interface, against the formulas.

coarse run --cluster 2x2 --devices 1 benchmarks/wire.py

Forward and backward apart, as FCDP's Table VII; the formulas are those of its Table I, VI-B and VI-C.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import numpy as np

import coarse
from benchmarks.crossing import Received, received_now
from benchmarks.sharded_contenders import Contender, Volume, contenders_named, formula

DEFAULT_CONTENDERS = (
    "fsdp-ring,fsdp-hierarchical,hybrid-hierarchical,zeropp-hierarchical,fcdp-ring,fcdp-hierarchical,"
    "fsdp-ring-lora,fsdp-hierarchical-lora,zeropp-hierarchical-lora,fcdp-ring-lora,fcdp-hierarchical-lora"
)
_WARM_UP_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class WireRow:
    """One contender's bytes into a node, per step; the largest of all nodes."""

    contender: str
    forward_bytes: float
    backward_bytes: float
    forward_payload_bytes: float
    backward_payload_bytes: float
    formula_forward_bytes: float
    formula_backward_bytes: float

    @property
    def excess(self) -> float:
        """How much more than the formula's bytes came, without the headers; a share of the formula's."""
        wanted = self.formula_forward_bytes + self.formula_backward_bytes
        return (self.forward_payload_bytes + self.backward_payload_bytes) / wanted - 1


def main() -> None:
    """Every contender in turn; worker 0 prints the table and writes benchmarks/results/wire.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contenders", default=DEFAULT_CONTENDERS)
    parser.add_argument("--steps", type=int, default=4, help="that are counted, after two that are not")
    parser.add_argument("--name", default="wire", help="of the file in benchmarks/results")
    options = parser.parse_args()
    contenders = contenders_named(options.contenders)
    coarse.init()
    rows = [measured(contender, options.steps) for contender in contenders]
    if coarse.rank() == 0:
        report(rows, options.name)


def measured(contender: Contender, num_steps: int) -> WireRow:
    """What crosses in one step of a contender, the mean over `num_steps`."""
    from benchmarks.sharded_training import ShardedTrainee

    trainee = ShardedTrainee(contender, rows=1)
    for _ in range(_WARM_UP_STEPS):
        trainee.step()
    passes = np.zeros((2, 2))  # forward and backward; bytes and payload
    for _ in range(num_steps):
        for index, run in enumerate((trainee.forward, trainee.backward)):
            before = _quiet_count()
            run()
            came = _quiet_count().since(before)
            passes[index] += (came.num_bytes, came.payload_bytes)
    passes = coarse.push_pull(passes / num_steps, f"wire/{contender.name}", coarse.Max)
    return row_of(contender, passes, formula(contender, trainee.weights, workers_of_nodes()))


def row_of(contender: Contender, passes: np.ndarray, wanted: Volume) -> WireRow:
    """`passes` is (2, 2) float64: forward and backward by bytes and payload."""
    return WireRow(
        contender=contender.name,
        forward_bytes=float(passes[0, 0]),
        backward_bytes=float(passes[1, 0]),
        forward_payload_bytes=float(passes[0, 1]),
        backward_payload_bytes=float(passes[1, 1]),
        formula_forward_bytes=wanted.forward_bytes,
        formula_backward_bytes=wanted.backward_bytes,
    )


def workers_of_nodes() -> list[int]:
    """How many workers each node has: in a cluster in a box all have equally many."""
    return [coarse.local_size()] * (coarse.size() // coarse.local_size())


def _quiet_count() -> Received:
    """What this node has received once nobody sends any more."""
    coarse.barrier()
    return received_now()


def report(rows: list[WireRow], name: str) -> None:
    """Print the table and write the JSON file."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import print_table, write_json
    from benchmarks.sharded_tables import WIRE_COLUMNS, wire_lines

    found = [asdict(row) | {"excess": row.excess} for row in rows]
    title = "Bytes into a node per step (measured at its interface, cluster in a box)"
    print_table(title, WIRE_COLUMNS, wire_lines(found))
    result = provenance("wire.py", sys.argv[1:], 1) | {
        "command": " ".join(["coarse run --cluster 2x2 --devices 1 benchmarks/wire.py", *sys.argv[1:]]),
        "workers_of_nodes": workers_of_nodes(),
        "rows": found,
    }
    print(f"\nwritten to {write_json(name, result)}")


if __name__ == "__main__":
    main()
