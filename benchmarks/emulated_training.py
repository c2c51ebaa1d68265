"""Emulated trainings beside the simulation of their own steps, beside themselves under load, and beside live ones.

python benchmarks/emulated_training.py      a quarter of an hour; starts its jobs itself

Every cell trains a small model for real, by `coarse run --machine`, with compute as measured, and holds the last
iterations against `simulate` (or `simulate_sharded`) on their own buckets or units: mean 5 %, largest 10 %. A cell is
left out where a machine has no room for it. Beside processes that fill memory, iterations move by 6 % at most, and by
none with a file of compute times. Twenty steps take at most three times as long as live. Each row is written as soon as
it is there; `--resume` runs the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.provenance import provenance
from benchmarks.rendering import RESULTS_FOLDER, print_table, write_json

NAME = "emulated-training"
MACHINES = {"cxl-cz120": 1, "aws-p3": 2, "fcdp-a40-10gbe": 2}
"""Nodes of each; mode dense has one."""
MODELS = ("gpt", "cnn")
MODES = ("coarse", "coarse ring", "dense", "allreduce", "fsdp", "hybrid", "zeropp", "fcdp", "odc")
WORKERS = (2, 4)
STEPS = 14
MOST_OF_MEAN, MOST_OF_ONE, MOST_UNDER_LOAD, MOST_OF_LIVE = 0.05, 0.10, 0.06, 3.0
_HOG = "import numpy\na = numpy.ones(1 << 26)\nwhile True: a += 1.0"
_JOB = Path(__file__).with_name("emulated_job.py")
_LIVE_STEPS = 20
_REFUSED = 2
"""Status of `coarse run` where a machine has no places for a job."""


class Cell(NamedTuple):
    """One training."""

    machine: str
    model: str
    mode: str
    workers: int

    @property
    def nodes(self) -> int:
        """Return how many nodes of the machine it has."""
        return 1 if self.mode == "dense" else MACHINES[self.machine]

    @property
    def key(self) -> str:
        """Return what tells it from others."""
        return f"{self.machine}, {self.model}, {self.workers} workers on {self.nodes}, {self.mode}"

    def command(self, folder: Path, *options: str, steps: int = STEPS) -> list[str]:
        """Return the command that trains it, emulated."""
        is_sharded = self.mode not in MODES[:4]
        devices = {"dense": 1}.get(self.mode, self.nodes if is_sharded else max(self.nodes, self.workers // 2))
        mode = "coarse" if is_sharded else self.mode.partition(" ")[0]
        config = folder / "coarse.toml"
        collective = "ring" if self.mode == "coarse ring" else "in_place"
        config.write_text(f'policy = "devices"\ncollective = "{collective}"\nstartup_timeout_s = 120.0\n')
        return [
            sys.executable, "-m", "coarse", "run", "--machine", self.machine, "--nodes", str(self.nodes), "--out",
            str(folder / "out"), "--workers", str(self.workers), "--devices", str(devices), "--mode", mode, "--config",
            str(config), *options, str(_JOB), self.model, self.mode if is_sharded else "optimizer", str(steps),
        ]  # fmt: skip


def main() -> None:
    """Run all, print tables, and write benchmarks/results/emulated-training.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resume", action="store_true", help="leave out cells that the result has")
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--modes", default=",".join(MODES))
    given = parser.parse_args()
    path = RESULTS_FOLDER / f"{NAME}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if given.resume and path.is_file() else {}
    rows: dict[str, Any] = found.get("rows", {})
    report: dict[str, Any] = {**provenance("emulated_training.py", sys.argv[1:], 1), "rows": rows}
    report["kind"] = "emulated, simulated; wall times measured"
    for cell in _cells(given.machines.split(","), given.modes.split(",")):
        if cell.key not in rows:
            rows[cell.key] = compared(cell)
            print(f"{cell.key}: {rows[cell.key]}", file=sys.stderr, flush=True)
            write_json(NAME, report)
    report["load"] = found.get("load") or under_load()
    report["live"] = found.get("live") or beside_live()
    write_json(NAME, report)
    show(report)


def _cells(machines: Sequence[str], modes: Sequence[str]) -> Iterator[Cell]:
    for machine in machines:
        for model in MODELS:
            for mode in modes:
                for workers in WORKERS:
                    yield Cell(machine, model, mode, workers)


def emulated(cell: Cell, *options: str, steps: int = STEPS) -> dict[str, Any]:
    """Return the account of a training."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        done = subprocess.run(
            cell.command(place, *options, steps=steps), capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode == _REFUSED:
            return {"simulated": done.stderr.strip().removeprefix("coarse: ")}
        if done.returncode:
            raise SystemExit(f"{cell.key}: status {done.returncode}\n{done.stdout}{done.stderr}")
        account: dict[str, Any] = json.loads((place / "out" / "run.json").read_text())
    return account


def compared(cell: Cell) -> dict[str, Any]:
    """Return one cell: milliseconds of an iteration, emulated and simulated, and transfers that came late."""
    account = emulated(cell)
    own = account["simulated"]
    if isinstance(own, str):
        return {"not_simulated": own}
    return {
        "emulated_ms": 1e3 * own["emulated_s"],
        "simulated_ms": 1e3 * own["simulated_s"],
        "ratio": own["emulated_s"] / own["simulated_s"],
        "late": account["num_late"],
        "transfers": account["num_transfers"],
    }


def under_load() -> dict[str, Any]:
    """Return iterations quiet and beside two processes that fill memory: by CPU time, and by a file of times."""
    cell = Cell("cxl-cz120", "gpt", "coarse", 2)
    with tempfile.TemporaryDirectory() as folder:
        times = str(Path(folder) / "step.json")
        emulated(cell, "--save-compute", times, steps=_LIVE_STEPS)
        scale = str(json.loads(Path(times).read_text())["scale"])  # or the hogs would be in what is measured of a core
        quiet = [emulated(cell, "--compute-scale", scale, steps=_LIVE_STEPS) for _ in range(3)]
        by_file = [emulated(cell, "--compute", times, steps=_LIVE_STEPS)]
        with hogs():
            loaded = [emulated(cell, "--compute-scale", scale, steps=_LIVE_STEPS) for _ in range(3)]
            by_file.append(emulated(cell, "--compute", times, steps=_LIVE_STEPS))
    seconds = [[median(_seconds(account)) for account in accounts] for accounts in (quiet, loaded, by_file)]
    return {
        "quiet_ms": [1e3 * each for each in seconds[0]],
        "beside_two_hogs_ms": [1e3 * each for each in seconds[1]],
        "moved_by": median(seconds[1]) / median(seconds[0]) - 1,
        "by_a_file_moved_by": seconds[2][1] / seconds[2][0] - 1,
        "late": sum(account["num_late"] for account in (*quiet, *loaded, *by_file)),
    }


def _seconds(account: Mapping[str, Any]) -> list[float]:
    return [row["end_s"] - row["begin_s"] for row in account["iterations"]]


@contextmanager
def hogs() -> Iterator[None]:
    """Two processes that read and write half a GiB each, again and again."""
    running = [subprocess.Popen([sys.executable, "-c", _HOG]) for _ in range(2)]
    try:
        time.sleep(2.0)
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def beside_live() -> dict[str, Any]:
    """Return wall seconds of the demo's GPT for 20 steps, live and emulated, three times in turn."""
    script = Path(__file__).parents[1] / "experiments" / "train_gpt.py"
    found: dict[str, list[float]] = {"live_s": [], "emulated_s": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            for name, options in (("live_s", ()), ("emulated_s", ("--machine", "cxl-cz120", "--out", folder))):
                command = [sys.executable, "-m", "coarse", "run", *options, str(script)]
                begin_s = time.perf_counter()
                subprocess.run(
                    [*command, "--steps", str(_LIVE_STEPS), "--out", folder], check=True, capture_output=True,
                    timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"},
                )  # fmt: skip
                found[name].append(time.perf_counter() - begin_s)
    return {**found, "ratio": median(found["emulated_s"]) / median(found["live_s"])}


def show(report: Mapping[str, Any]) -> None:
    """Print tables and what they come to."""
    rows = {key: row for key, row in report["rows"].items() if "ratio" in row}
    lines = [
        [
            key, f"{row['emulated_ms']:.3f}", f"{row['simulated_ms']:.3f}", f"{row['ratio']:.3f}",
            f"{row['late']} of {row['transfers']}",
        ]
        for key, row in rows.items()
    ]  # fmt: skip
    print_table("Milliseconds of an iteration", ["", "emulated", "simulated", "ratio", "late"], lines)
    for key, row in report["rows"].items():
        if "ratio" not in row:
            print(f"left out: {key}: {row['not_simulated']}")
    off = {key: abs(row["ratio"] - 1) for key, row in rows.items()}
    worst = max(off, key=lambda key: off[key])
    load, live = report["load"], report["live"]
    print(f"\n{len(off)} cells: mean {fmean(off.values()):.1%} (wanted {MOST_OF_MEAN:.0%}), largest {off[worst]:.1%} "
          f"(wanted {MOST_OF_ONE:.0%}): {worst}")  # fmt: skip
    print(f"beside two hogs: moved by {load['moved_by']:+.1%} (wanted {MOST_UNDER_LOAD:.0%} at most), by a file of "
          f"times {load['by_a_file_moved_by']:+.1%} (wanted none), {load['late']} late")  # fmt: skip
    print(f"20 steps of the demo's GPT: {live['ratio']:.2f} times the live wall time (wanted {MOST_OF_LIVE:g} at most)")


if __name__ == "__main__":
    main()
