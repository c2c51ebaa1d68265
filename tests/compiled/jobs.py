"""Prints whether modules are compiled here, and a digest of what each of many simulated jobs gives (not so with
`--nothing`)."""

import hashlib
import sys
from dataclasses import replace

from coarse.hardware.compute import compute_profile
from coarse.hardware.models import Precision, model_named
from coarse.hardware.presets import load_preset
from coarse.protocol.config import MODES, POLICIES
from coarse.simulation import engine
from coarse.simulation.report import Report
from coarse.simulation.scenario import Scenario
from coarse.simulation.training import simulate

MACHINES = (("aws-g4dn", "t4"), ("aws-p3", "v100"))
CLUSTERS = ((2, 1), (4, 1), (8, 2))
"""Workers, and nodes."""


def digest(report: Report) -> str:
    told = report.iterations, sorted(report.link_bytes.items()), report.syncs, report.num_events
    return hashlib.sha256(repr(told).encode()).hexdigest()


def main() -> None:
    print("compiled" if engine.__file__.endswith(".so") else "interpreted")
    model = model_named("resnet50")
    for preset, gpu in () if "--nothing" in sys.argv else MACHINES:
        for mode in MODES:
            for policy in POLICIES:
                for workers, nodes in CLUSTERS[: 2 if mode == "dense" else 3]:
                    scenario = Scenario(
                        machine=replace(load_preset(preset), num_nodes=nodes),
                        model=model,
                        profile=compute_profile(model, gpu, 64, Precision.FP32),
                        mode=mode,
                        num_workers=workers,
                        num_nodes=nodes,
                        policy=policy,
                    )
                    report = simulate(scenario.job(), record=workers == 4)
                    print(preset, mode, policy, workers, digest(report))


if __name__ == "__main__":
    main()
