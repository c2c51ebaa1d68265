"""What losses cost many-to-one push and pull by a switch: selective repeat beside the paper's go-back-N (simulated).

python benchmarks/switch_goodput.py
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.provenance import provenance
from experiments.many_to_one.links import Network
from experiments.many_to_one.simulation import simulate

RESULT = Path(__file__).parent / "results" / "switch-goodput.json"
LEAST_OF_LOSSLESS = 0.9
"""The target at 0.1 % loss."""
TREES = ((2,), (8,), (2, 4))
LOSSES = (0.0, 0.0001, 0.001, 0.01, 0.1)
NUM_PACKETS = 20_000
NUM_PACKETS_GO_BACK = 2_000
"""Fewer, for each loss takes seconds in which heartbeats go on."""


def main() -> None:
    """All trees and losses, as a table and as JSON."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    network = Network()
    rows = []
    print("| protocol | tree | loss on each link | of line rate | of lossless | sent again |")
    print("|---|---|---:|---:|---:|---:|")
    for go_back_n, trees, losses, count in (
        (False, TREES, LOSSES, NUM_PACKETS),
        (True, ((2,), (8,)), LOSSES[:3], NUM_PACKETS_GO_BACK),
    ):
        for tree in trees:
            lossless = 0.0
            for loss in losses:
                outcome = simulate(tree, count, replace(network, loss=loss), go_back_n=go_back_n)
                goodput = count * network.packet_s / max(outcome.push_s, outcome.pull_s)
                lossless = lossless or goodput
                protocol = "go-back-N" if go_back_n else "selective repeat"
                rows.append(
                    {"protocol": protocol, "tree": tree, "loss": loss, "packets": count, "of_line_rate": goodput}
                    | asdict(outcome)
                )
                print(
                    f"| {protocol} | {' x '.join(map(str, tree))} | {100 * loss:g} % | {goodput:.4f} | "
                    f"{goodput / lossless:.4f} | {outcome.num_resent} |"
                )
    result = {**provenance("switch_goodput.py", [], 1), "kind": "simulated", "network": asdict(network), "rows": rows}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
