"""Steps by luwu beside ZeRO-Infinity's, with compute that is replayed (emulated) over a real disk and real links.

python benchmarks/luwu.py --storage DIR     (half an hour; starts its jobs itself)
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.disk_probe import probe_s
from benchmarks.luwu_ranks import BACKWARD_SHARE, planned_bytes
from benchmarks.provenance import provenance

RESULT = Path(__file__).parent / "results" / "luwu.json"
NUM_BLOCKS = 8
BLOCK_ELEMENTS = 8 << 20
MEMORY_BYTES = 400_000_000
NUM_WORKERS = 2
STEPS = 5
CLIPPED_STEPS = 10
RATIOS = (1 / 3, 2 / 3, 1.0, 1.5, 3.0)
"""Compute to disk."""
LUWU = ("luwu", "luwu-backward")
MODES = (*LUWU, "zero-infinity")
DEEPSPEED = "deepspeed"
"""DeepSpeed's own ZeRO-Infinity, where it is installed; see benchmarks/contenders/deepspeed.py."""
MOST_OF_SLOWEST, LEAST_OF_OTHER, LEAST_OF_PROBE, LEAST_OF_BOUND = 1.15, 1.5, 0.85, 0.9
"""The targets: a step against its slowest resource, ZeRO-Infinity's against luwu's at the best ratio, the disk's probe
against a step that the disk bounds, and, where the slowest resource is missed, the bound against a step."""


@dataclass(frozen=True)
class Row:
    """One mode at one ratio: medians over rounds."""

    mode: str
    compute_s: float
    disk_s: float
    """A probe's time, around the runs, for what the mode plans to read and write; of zero-infinity 0: nobody asked."""
    cpu_s: float
    """CPU seconds of all ranks, for each of the machine's cores."""
    step_s: float
    clipped: float | None = None
    is_speculative: bool = False

    @property
    def slowest_s(self) -> float:
        """Of the resources."""
        return max(self.compute_s, self.disk_s, self.cpu_s)


def bound_s(row: Row, planned: dict[str, tuple[int, int]]) -> float:
    """The least that a step can take by what it reads: its slowest resource, or, of update="step", whose updates all
    come in forward, backward's compute and then the disk's time for all reads but those of backward's pulls."""
    if row.mode != "luwu":
        return row.slowest_s
    pulls = NUM_BLOCKS * BLOCK_ELEMENTS * 4
    in_forward = 1 - pulls / planned[row.mode][0]
    return max(row.slowest_s, BACKWARD_SHARE * row.compute_s + in_forward * row.disk_s)


class Bench:
    """Runs jobs in one folder."""

    def __init__(self, storage: Path, modes: tuple[str, ...]) -> None:
        self._storage = storage
        self.modes = modes
        self.planned: dict[str, tuple[int, int]] = {}
        """By mode, bytes that a step reads and writes."""

    def run(self, mode: str, compute_s: float, steps: int, *more: str) -> dict[str, float]:
        """One job's medians."""
        folder = self._storage / "states"
        with tempfile.TemporaryDirectory() as out:
            arguments = [
                f"{out}/out.json", mode, str(folder), "--blocks", str(NUM_BLOCKS), "--elements", str(BLOCK_ELEMENTS),
                "--compute", f"{compute_s:.4f}", "--steps", str(steps), "--memory", str(MEMORY_BYTES), *more,
            ]  # fmt: skip
            coarse = Path(sys.executable).parent / "coarse"
            job = Path(__file__).with_name("luwu_job.py")
            command = [coarse, "run", "--workers", str(NUM_WORKERS), "--devices", "1", job, *arguments]
            try:
                subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, timeout=600)
                found: dict[str, float] = json.loads(Path(f"{out}/out.json").read_text())
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        return found

    def plan(self) -> None:
        """What luwu reads and writes in a step, as it says itself."""
        for mode in LUWU:
            self.planned[mode] = planned_bytes(self.run(mode, 0.0, 1)["told"][0])  # type: ignore[index]

    def probe(self, mode: str) -> float:
        """The same bytes, and nothing else."""
        return probe_s(self._storage, *self.planned[mode]) if mode in self.planned else 0.0


def main() -> None:
    """All ratios, then clipping, as tables and as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", type=Path, required=True, help="a folder on the disk to be measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--deepspeed", action="store_true", help="DeepSpeed's own ZeRO-Infinity beside them")
    given = parser.parse_args()
    given.storage.mkdir(parents=True, exist_ok=True)
    bench = Bench(given.storage, (*MODES, *([DEEPSPEED] if given.deepspeed else [])))
    bench.plan()
    disk_s = median(bench.probe("luwu") for _ in range(3))
    rows = [row for ratio in RATIOS for row in rows_at(bench, ratio * disk_s, given.rounds)]
    clipped = clipped_rows(bench, disk_s)
    show(rows, clipped, bench.planned)
    document = {
        **provenance("luwu.py", ["--storage", "DIR"], 1),
        "kind": "measured; compute emulated: it sleeps",
        "planned_bytes": bench.planned,
        "rows": [asdict(row) for row in rows], "clipped": [asdict(row) for row in clipped],
    }  # fmt: skip
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


def rows_at(bench: Bench, compute_s: float, rounds: int) -> list[Row]:
    """All modes in turns, probes of the disk before and after each turn."""
    modes = bench.modes
    probes = {mode: [bench.probe(mode)] for mode in modes}
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
    for number in range(rounds):
        for mode in modes if number % 2 == 0 else reversed(modes):
            found[mode].append(bench.run(mode, compute_s, STEPS))
        for mode, of_mode in probes.items():
            of_mode.append(bench.probe(mode))
    return [
        Row(mode, compute_s, median(probes[mode]), *(median(run[name] for run in runs) for name in ("cpu_s", "step_s")))
        for mode, runs in found.items()
    ]


def clipped_rows(bench: Bench, compute_s: float) -> list[Row]:
    """Clipping by the norm first, and by updates that are made anew, at several shares of clipped steps."""
    rows = []
    for share in (0.0, 0.1, 1.0):
        for speculative in (False, True):
            more = ["--clip", str(share), *(["--speculative"] if speculative else [])]
            run = bench.run("luwu", compute_s, CLIPPED_STEPS, *more)
            rows.append(Row("luwu", compute_s, bench.probe("luwu"), run["cpu_s"], run["mean_s"], share, speculative))
    return rows


def show(rows: list[Row], clipped: list[Row], planned: dict[str, tuple[int, int]]) -> None:
    """Both tables, and what became of the targets."""
    num_modes = len({row.mode for row in rows})
    peers = ("DeepSpeed's s",) * (num_modes - len(MODES))
    titles = ("compute s", "disk s (probes)", "luwu s", "luwu, backward s", "zero-infinity s", *peers, "CPU s a core",
              "luwu / slowest", "luwu / bound")  # fmt: skip
    print(f"| {' | '.join(titles)} |\n|{'---:|' * len(titles)}")
    gains, bounds, of_probe, of_bound = [], [], [], []
    for at in range(0, len(rows), num_modes):
        step, backward, other, *peer = rows[at : at + num_modes]
        least_s = bound_s(step, planned)
        of_bound.append(least_s / step.step_s)
        faster = min(step, backward, key=lambda row: row.step_s)
        gains.append(other.step_s / faster.step_s)
        bounds.append(faster.step_s / faster.slowest_s)
        of_probe += [row.disk_s / row.step_s for row in (step, backward) if row.disk_s == row.slowest_s]
        print(
            f"| {step.compute_s:.2f} | {step.disk_s:.2f}, {backward.disk_s:.2f} | {step.step_s:.2f} | "
            f"{backward.step_s:.2f} | {other.step_s:.2f} | {''.join(f'{row.step_s:.2f} | ' for row in peer)}"
            f"{faster.cpu_s:.2f} | {step.step_s / step.slowest_s:.2f}, "
            f"{backward.step_s / backward.slowest_s:.2f} | {step.step_s / least_s:.2f} |"
        )
    best = max(gains)
    for what, value, held in (
        (f"step at most {MOST_OF_SLOWEST} of its slowest resource", max(bounds), max(bounds) <= MOST_OF_SLOWEST),
        (f'update="step" at least {LEAST_OF_BOUND} of its bound', min(of_bound), min(of_bound) >= LEAST_OF_BOUND),
        (f"zero-infinity's at least {LEAST_OF_OTHER} of it at the best ratio", best, best >= LEAST_OF_OTHER),
        (f"bound by the disk, at least {LEAST_OF_PROBE} of the probe", min(of_probe), min(of_probe) >= LEAST_OF_PROBE),
    ):
        print(f"{what}: {value:.2f}, {'yes' if held else 'no'}")
    print("\n| clipped steps | norm first s | speculative s |\n|---:|---:|---:|")
    for exact, speculative in zip(clipped[::2], clipped[1::2], strict=True):
        print(f"| {100 * (exact.clipped or 0):g} % | {exact.step_s:.2f} | {speculative.step_s:.2f} |")


if __name__ == "__main__":
    main()
