"""Train one model in one process and by other ways - all-reduce and coarse, or those of --mode - and show that only
the time differs.

Writes loss.png, timeline.png, trace.json (for ui.perfetto.dev) and rows.json, and ends with status 1 if the loss of
a synchronised run differs from that of one process by more than the tolerance in the first steps.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from rich.console import Console

from coarse.protocol.config import POLICIES
from experiments.comparison import EARLY_STEPS, TOLERANCE, comparison_rows, comparison_table
from experiments.figures import draw_losses, draw_timeline
from experiments.gpt.rows import provenance, read_run, write_json

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "single process"
NAMES = {"allreduce": "all-reduce", "coarse": "coarse", "dense": "dense"}
"""Of the modes that can stand beside one process."""
DEFAULT_MODES = ("allreduce", "coarse")
WORKERS = 2
DEVICES = 2
RUN_TIMEOUT_S = 150
"""A run that takes longer has hung; on two idle cores each takes less than a minute."""


class DemoError(Exception):
    """The demo has no result to show, or a result that is wrong."""


def run_command(mode: str, steps: int, out: Path, policy: str | None = None) -> list[str]:
    """The command line of one run; each says itself what it starts."""
    script = [str(ROOT / "experiments" / "train_gpt.py"), "--mode", mode, "--steps", str(steps), "--out", str(out)]
    if policy is not None and mode == "coarse":
        script += ["--policy", policy]
    if mode == "single":
        return [sys.executable, *script]
    launch = ["-m", "coarse", "run", "--workers", str(WORKERS), "--devices", str(DEVICES)]
    return [sys.executable, *launch, *script]


def start(name: str, command: list[str]) -> None:
    """Run a command to its end, its output shown as it comes; it is ended when it takes too long."""
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            status = process.wait(RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{name}: no end after {RUN_TIMEOUT_S} s, ended it; its last output says where") from None
        finally:
            _end(process)
    if status:
        raise DemoError(f"{name}: ended with status {status}; its output above says why")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process that still runs to end, then end it."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()


def check_losses(rows: list[dict[str, Any]]) -> None:
    """Refuse a result that is another training than that of one process."""
    wrong = [row for row in rows if not row["agrees"]]
    if wrong:
        found = ", ".join(f"{row['name']} by {row['loss_difference_early']:.1e}" for row in wrong)
        raise DemoError(
            f"in the first {EARLY_STEPS} steps the loss should differ from that of a {REFERENCE} by at most "
            f"{TOLERANCE:.0e} (relative), but differs: {found}; gradients are not the mean over all workers"
        )


def show(runs: dict[str, list[dict[str, Any]]], out: Path, console: Console) -> None:
    """The table, the pictures, the trace and the rows; then the check."""
    from experiments.step_trace import write_traces  # only now: the runs are over, and coarse may start MPI in here

    firsts = {name: documents[0] for name, documents in runs.items()}
    rows = comparison_rows(firsts, REFERENCE)
    draw_losses(firsts, REFERENCE, out / "loss.png")
    draw_timeline(runs, out / "timeline.png")
    write_traces(runs, out / "runs", out / "trace.json")
    write_json(out / "rows.json", {**provenance(), "rows": rows, "runs": runs})
    settings = firsts[REFERENCE]["settings"]
    title = f"{settings['steps']} steps of {settings['global_rows']} rows of {settings['shape']['context']} bytes"
    console.print(comparison_table(rows, f"{title}; {WORKERS} workers and {DEVICES} memory devices"))
    for name in ("loss.png", "timeline.png", "trace.json", "rows.json"):
        console.print(f"wrote {(out / name).as_posix()}", highlight=False)
    check_losses(rows)


def main() -> int:
    """Run, show and check; 0 when the losses agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "demo")
    parser.add_argument(
        "--mode", choices=NAMES, action="append", help="a way beside one process, once for each; default: "
        + " and ".join(DEFAULT_MODES)
    )  # fmt: skip
    parser.add_argument("--policy", choices=POLICIES, help="of the mode coarse: who synchronises which gradients")
    options = parser.parse_args()
    modes = {REFERENCE: "single", **{NAMES[mode]: mode for mode in options.mode or DEFAULT_MODES}}
    out = options.out.resolve()
    console = Console()
    shutil.rmtree(out / "runs", ignore_errors=True)  # rows of an earlier demo must not pass for this one's
    try:
        for name, mode in modes.items():
            console.rule(name)
            start(name, run_command(mode, options.steps, out / "runs", options.policy))
        show({name: read_run(out / "runs", mode) for name, mode in modes.items()}, out, console)
    except DemoError as error:
        console.print(f"[bold red]demo failed[/]: {error}", highlight=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
