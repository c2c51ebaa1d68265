"""Steps on a cluster in a box beside the same steps emulated: two nodes of two workers, links of 100 Mbit/s.

python benchmarks/emulated_box.py      as root; five minutes; starts its jobs itself

Both run one script (benchmarks/emulated_box_job.py) with the same real bytes. In the box they cross links of the
kernel's; the emulated run has a machine file of these links: 100 Mbit/s times 1448 of 1514, what TCP leaves of a full
frame, and the latency that a message of 8 bytes is measured to take before. Medians of steps, 10 % wanted at most.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.odc_emulated import PAYLOAD
from benchmarks.provenance import provenance
from benchmarks.rendering import print_table, write_json

NAME = "emulated-box"
MODES = ("coarse", "allreduce", "fsdp", "hybrid", "zeropp", "fcdp", "odc")
RATE_MBIT = 100.0
COMPUTE_S = 0.5
"""Of each step: a fifth of it and more."""
STEPS, NUM_WARM = 9, 3
MOST_OFF = 0.10
_PINGS = 200
_JOB = Path(__file__).with_name("emulated_box_job.py")
_BOX = ["--cluster", "2x2", "--devices", "1", "--rate", f"{RATE_MBIT:g}mbit"]
_PRESET = Path(__file__).parents[1] / "coarse" / "hardware" / "presets" / "fcdp-a40-1gbe.toml"


def machine_file(folder: Path, latency_us: float) -> Path:
    """Return the file of a machine with the box's links between nodes."""
    text = _PRESET.read_text(encoding="utf-8")
    text = re.sub("bandwidth_gb_per_s = 0.1182 .*", f"bandwidth_gb_per_s = {RATE_MBIT / 8e3 * PAYLOAD}", text)
    text = re.sub("latency_us = 20 .*", f"latency_us = {latency_us}", text)
    path = folder / "box.toml"
    path.write_text(without_intervals(text.replace('name = "fcdp-a40-1gbe"', 'name = "box"')), encoding="utf-8")
    return path


def without_intervals(text: str) -> str:
    """Return a machine file's text without the table [intervals], which has to hold the preset's own values."""
    return re.sub(r"(?ms)^\[intervals\].*?(?=^\[\[)", "", text)


def latency_us() -> float:
    """Return half of what a message of 8 bytes takes from a node of the box to the other and back."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "steps.json"
        command = [sys.executable, "-m", "coarse", "run", *_BOX, str(_JOB), "ping", "0", str(_PINGS), str(out)]
        subprocess.run(command, capture_output=True, check=True, timeout=600)
        found: list[float] = json.loads(out.read_text())
    return 1e6 * median(found) / 2


def steps_s(mode: str, where: list[str], folder: Path) -> list[float]:
    """Return seconds of each step that counts."""
    is_sharded = mode not in MODES[:2]
    config, out = folder / "coarse.toml", folder / "steps.json"
    config.write_text('policy = "devices"\nworker_collective = "ring"\nstartup_timeout_s = 120.0\n')
    command = [
        sys.executable, "-m", "coarse", "run", *where, "--config", str(config), "--mode",
        "coarse" if is_sharded else mode, str(_JOB), mode if is_sharded else "optimizer", str(COMPUTE_S), str(STEPS),
        str(out),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"{mode}: status {done.returncode}\n{done.stdout}{done.stderr}")
    found: list[float] = json.loads(out.read_text())
    return found[NUM_WARM:]


def main() -> None:
    """Run all, print a table, and write benchmarks/results/emulated-box.json."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows: dict[str, Any] = {}
    latency = latency_us()
    for mode in MODES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            there = [
                "--machine", str(machine_file(folder, latency)), "--nodes", "2", "--workers", "4", "--devices", "2",
                "--compute-scale", "1e9", "--out", str(folder / "out"),
            ]  # fmt: skip
            measured, emulated = steps_s(mode, _BOX, folder), steps_s(mode, there, folder)
        rows[mode] = {
            "measured_s": median(measured), "emulated_s": median(emulated),
            "ratio": median(emulated) / median(measured), "all_measured_s": measured,
        }  # fmt: skip
        print(f"{mode}: {rows[mode]}", file=sys.stderr, flush=True)
    report = {**provenance("emulated_box.py", sys.argv[1:], 1), "kind": "measured and emulated", "rows": rows}
    report["latency_us"] = latency
    write_json(NAME, report)
    lines = [
        [mode, f"{row['measured_s']:.3f}", f"{row['emulated_s']:.3f}", f"{row['ratio']:.3f}"]
        for mode, row in rows.items()
    ]
    print_table("Seconds of a step, in a box (measured) and emulated", ["", "measured", "emulated", "ratio"], lines)
    off = [abs(row["ratio"] - 1) for row in rows.values()]
    print(f"\nmean {fmean(off):.1%}, largest {max(off):.1%} (wanted {MOST_OFF:.0%})")


if __name__ == "__main__":
    main()
