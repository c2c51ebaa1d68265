"""The demo's GPT on memory devices of many latencies and rates, trained live in four modes, and their crossings.

python benchmarks/emulated_study.py      ten minutes; starts its jobs itself

The machine is cxl-cz120 with two workers. Latency and rate of its devices' ports, of the wires between them and of
coherent loads and stores are others at each point, with as many bytes under way as fill the rate. One run measures the
compute; all others, one for each mode and point, train for real by that file of times (`coarse run --machine FILE
--compute FILE`). Beside where emulated modes change places as latency grows stands where their own steps do that were
simulated, and where `coarse sweep` has it for the same model and compute, by the share of its parameters and its own
buckets.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.emulated_box import without_intervals
from benchmarks.provenance import provenance
from benchmarks.rendering import print_table, write_json
from coarse.cli.report.sweep.crossover import Axes, crossings

NAME = "emulated-study"
LATENCIES_US = (0.1, 1.0, 10.0, 100.0)
RATES_GB = (8.0, 16.0, 32.0, 64.0)
MODES = ("coarse in_place", "coarse ring", "dense", "allreduce")
STEPS = 12
GB, US = 1e9, 1e-6
_ROOT = Path(__file__).resolve().parents[1]
_PRESET = _ROOT / "coarse" / "hardware" / "presets" / "cxl-cz120.toml"
_LEAST_OUTSTANDING = 7616
"""Bytes: what the preset has."""
_WIRES = ("device-port", "cci")
Point = tuple[float, float]
"""(latency in microseconds, rate in GB/s)"""


def fields_at(point: Point) -> dict[str, float]:
    """Return the fields of the machine's file at a point."""
    latency_us, rate_gb = point
    under_way = max(_LEAST_OUTSTANDING, round(rate_gb * GB * latency_us * US))
    found: dict[str, float] = {"coherence.load_gb_per_s": rate_gb, "coherence.store_gb_per_s": rate_gb}
    found |= {"coherence.load_outstanding_bytes": under_way, "coherence.store_outstanding_bytes": under_way}
    found |= {"coherence.latency_us": latency_us, "wire.device-port.outstanding_bytes": under_way}
    for wire in _WIRES:
        found |= {f"wire.{wire}.latency_us": latency_us, f"wire.{wire}.bandwidth_gb_per_s": rate_gb}
    return found


def machine_file(point: Point, folder: Path) -> Path:
    """Return the file of the machine at a point: the preset's with these fields."""
    text = without_intervals(_PRESET.read_text(encoding="utf-8"))
    for key, value in fields_at(point).items():
        *table, field = key.split(".")
        head = r"\[coherence\]" if table == ["coherence"] else rf'\[\[wire\]\]\nname = "{table[1]}"'
        text, count = re.subn(rf"({head}\n(?:[^\[]*?\n)?{field} = )\S+", rf"\g<1>{value:g}", text, count=1)
        assert count == 1, f"{key} is not in {_PRESET}"
    path = folder / f"{point[0]:g}us-{point[1]:g}gb.toml"
    path.write_text(text, encoding="utf-8")
    return path


def run(mode: str, machine: Path, folder: Path, *options: str) -> dict[str, Any]:
    """Return the account of a training."""
    name, _, collective = mode.partition(" ")
    config, out = folder / "coarse.toml", folder / "out"
    config.write_text(f'collective = "{collective or "in_place"}"\npolicy = "devices"\nstartup_timeout_s = 120.0\n')
    command = [
        sys.executable, "-m", "coarse", "run", "--machine", str(machine), "--out", str(out), "--config", str(config),
        "--workers", "2", "--devices", "1" if name == "dense" else "2", "--mode", name, *options,
        str(_ROOT / "experiments" / "train_gpt.py"), "--steps", str(STEPS), "--no-exposed", "--out", str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"{mode} on {machine.name}: status {done.returncode}\n{done.stdout}{done.stderr}")
    account: dict[str, Any] = json.loads((out / "run.json").read_text())
    return account


def measured_points(folder: Path) -> dict[str, Any]:
    """Return, by mode and point, milliseconds of an iteration, emulated and simulated, and the compute of all."""
    times = str(folder / "step.json")
    first = run(MODES[0], machine_file((1.0, 32.0), folder), folder, "--save-compute", times)
    rows: list[dict[str, Any]] = []
    for rate in RATES_GB:
        for latency in LATENCIES_US:
            machine = machine_file((latency, rate), folder)
            for mode in MODES:
                account = run(mode, machine, folder, "--compute", times)
                own = account["simulated"]
                rows.append({
                    "mode": mode, "latency_us": latency, "rate_gb_per_s": rate,
                    "emulated_ms": 1e3 * fmean(row["end_s"] - row["begin_s"] for row in account["iterations"]),
                    "compute_ms": 1e3 * fmean(row["compute_s"] for row in account["iterations"]),
                    "simulated_ms": 1e3 * own["simulated_s"], "late": account["num_late"],
                })  # fmt: skip
                print(rows[-1], file=sys.stderr, flush=True)
    return {"rows": rows, "compute_scale": first["compute_scale"]}


def swept_points(compute_ms: float, folder: Path) -> list[dict[str, Any]]:
    """Return milliseconds of an iteration that `coarse sweep` simulates at the same points with the same compute."""
    points = [(latency, rate) for rate in RATES_GB for latency in LATENCIES_US]
    listed = folder / "points.csv"
    with listed.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields_at(points[0]))
        writer.writeheader()
        writer.writerows(map(fields_at, points))
    rows = []
    for collective, modes in (("in_place", "dense,allreduce,coarse"), ("ring", "coarse")):
        out = folder / f"sweep-{collective}"
        command = [
            sys.executable, "-m", "coarse", "sweep", "--machine", "cxl-cz120", "--model",
            f"{_ROOT / 'experiments' / 'gpt' / 'model.py'}:demo", "--workers", "2", "--policy", "devices", "--modes",
            modes, "--collective", collective, "--iteration-s", str(compute_ms / 1e3), "--batch", "8", "--samples", "0",
            "--list", str(listed), "--out", str(out),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=_ROOT)
        if done.returncode:
            raise SystemExit(f"coarse sweep: status {done.returncode}\n{done.stdout}{done.stderr}")
        with (out / "rows.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(line for line in file if not line.startswith("#")):
                name = row["mode"] if row["mode"] != "coarse" else f"coarse {collective}"
                rows.append({
                    "mode": name, "latency_us": float(row["wire.cci.latency_us"]),
                    "rate_gb_per_s": float(row["wire.cci.bandwidth_gb_per_s"]),
                    "swept_ms": 1e3 * float(row["iteration_s"]),
                })  # fmt: skip
    return rows


def places_changed(rows: Sequence[Mapping[str, Any]], key: str) -> Iterator[tuple[float, str, str, float]]:
    """Yield (rate, mode that is faster below, above, latency in microseconds) wherever two modes change places."""
    found = {(row["mode"], row["latency_us"], row["rate_gb_per_s"]): row[key] for row in rows}
    for rate in RATES_GB:
        lines = {mode: [found[mode, latency, rate] for latency in LATENCIES_US] for mode in MODES}
        for one, other in combinations(MODES, 2):
            for crossing in crossings(LATENCIES_US, lines[one], lines[other], Axes(log_x=True)):
                pair = (other, one) if crossing.is_first_lower else (one, other)
                yield rate, *pair, crossing.x


def show(report: Mapping[str, Any]) -> None:
    """Print tables."""
    for mode in MODES:
        own = {(row["latency_us"], row["rate_gb_per_s"]): row for row in report["rows"] if row["mode"] == mode}
        lines = [
            [f"{rate:g} GB/s", *(
                f"{own[x, rate]['emulated_ms']:.2f} ({own[x, rate]['emulated_ms'] / own[x, rate]['simulated_ms']:.3f})"
                for x in LATENCIES_US
            )]
            for rate in RATES_GB
        ]  # fmt: skip
        heads = ["", *(f"{x:g} us" for x in LATENCIES_US)]
        print_table(f"{mode}: milliseconds of an iteration, emulated (over simulated)", heads, lines)
    found: dict[tuple[float, str, str], dict[str, float]] = {}
    for kind, rows, key in (
        ("emulated", report["rows"], "emulated_ms"), ("simulated", report["rows"], "simulated_ms"),
        ("swept", report["swept"], "swept_ms"),
    ):  # fmt: skip
        for rate, below, above, latency in places_changed(rows, key):
            found.setdefault((rate, below, above), {})[kind] = latency
    lines = [
        [f"{rate:g} GB/s", f"{below}, then {above}", *(
            f"{places[kind]:.2f}" if kind in places else "-" for kind in ("emulated", "simulated", "swept")
        )]
        for (rate, below, above), places in sorted(found.items())
    ]  # fmt: skip
    heads = ["", "faster", "emulated", "own steps simulated", "coarse sweep"]
    print_table("Latencies in microseconds at which modes change places", heads, lines)


def main() -> None:
    """Run all, print tables, and write benchmarks/results/emulated-study.json."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report: dict[str, Any] = {**provenance("emulated_study.py", sys.argv[1:], 1), "kind": "emulated, simulated"}
        report |= measured_points(folder)
        report["swept"] = swept_points(fmean(row["compute_ms"] for row in report["rows"]), folder)
    write_json(NAME, report)
    show(report)


if __name__ == "__main__":
    main()
