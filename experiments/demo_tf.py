"""Train a Keras model in one process and on workers with memory devices, and show that two lines are all it takes.

Writes loss.png and rows.json, and ends with status 1 if the loss of any epoch differs from that of one process by more
than the tolerance, or if the model tells too few of the test's digits right.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from experiments.comparison import Document, difference_text, relative_differences
from experiments.demo import DEVICES, ROOT, WORKERS, DemoError, start
from experiments.gpt.rows import provenance, run_path, write_json
from experiments.keras_digits.figures import draw_comparison
from experiments.keras_digits.settings import DigitsTraining

SCRIPTS = ROOT / "experiments" / "keras_digits"
REFERENCE = "one process"
RUNS = {REFERENCE: "mirrored", f"{WORKERS} workers, {DEVICES} devices": "coarse"}
"""The name of each run, and the strategy that it trains by."""
TOLERANCE = 1e-4
"""Largest relative difference of an epoch's loss."""
LEAST_ACCURACY = 0.97


def swap() -> list[str]:
    """What a user changes: the difference between the two scripts that the demo runs, in diff's notation."""
    before, after = (SCRIPTS / f"{strategy}.py" for strategy in ("mirrored", "coarse"))
    names = [path.relative_to(ROOT).as_posix() for path in (before, after)]
    texts = [path.read_text().splitlines() for path in (before, after)]
    return list(difflib.unified_diff(*texts, *names, n=1, lineterm=""))


def run_command(strategy: str, epochs: int, out: Path) -> list[str]:
    """The command line of one run."""
    script = [str(ROOT / "experiments" / "train_keras_digits.py"), "--strategy", strategy]
    script += ["--epochs", str(epochs), "--out", str(out)]
    if strategy != "coarse":
        return [sys.executable, *script]
    launch = ["-m", "coarse", "run", "--workers", str(WORKERS), "--devices", str(DEVICES)]
    return [sys.executable, *launch, *script]


def differences_of(runs: Mapping[str, Document]) -> list[float]:
    """The relative difference of loss to one process's, of each epoch."""
    (_, other) = runs
    return relative_differences(runs[other]["history"]["loss"], runs[REFERENCE]["history"]["loss"])


def comparison(runs: Mapping[str, Document]) -> Table:
    """Loss by loss, then the test."""
    table = Table(title="Mean loss of each epoch, on the same global batches", title_justify="left")
    table.add_column("epoch", justify="right")
    for name in (*runs, "difference"):
        table.add_column(name, justify="right")
    histories = [document["history"] for document in runs.values()]
    differences = differences_of(runs)
    for epoch, difference in enumerate(differences):
        losses = [f"{history['loss'][epoch]:.7f}" for history in histories]
        table.add_row(str(epoch + 1), *losses, difference_text(difference), end_section=epoch + 1 == len(differences))
    summaries = [document["summary"] for document in runs.values()]
    table.add_row("largest", *("" for _ in runs), difference_text(max(differences)))
    table.add_row("test accuracy", *(f"{summary['test_accuracy']:.2%}" for summary in summaries), "")
    table.add_row("pushes", *(f"{summary['pushes']:,}" for summary in summaries), "")
    table.add_row("kind", *(summary["kind"] for summary in summaries), "")
    return table


def check(runs: Mapping[str, Document]) -> None:
    """Refuse a result that is another training than that of one process, or a model that learnt too little."""
    largest = max(differences_of(runs))
    if not largest <= TOLERANCE:
        raise DemoError(
            f"the loss of an epoch should differ from that of {REFERENCE} by at most {TOLERANCE:.0e} (relative), but "
            f"differs by {largest:.1e}; gradients are not the mean over all workers"
        )
    for name, document in runs.items():
        accuracy = document["summary"]["test_accuracy"]
        if not accuracy >= LEAST_ACCURACY:
            raise DemoError(f"{name}: {LEAST_ACCURACY:.0%} of the digits should be told right, but {accuracy:.2%} are")


def show(runs: Mapping[str, Document], out: Path, console: Console) -> None:
    """The changed lines, the table, the picture and the rows; then the check."""
    changed = swap()
    console.rule("what a user changes")
    console.print(Syntax("\n".join(changed), "diff", background_color="default"))
    console.print(comparison(runs))
    draw_comparison(runs, REFERENCE, TOLERANCE, out / "loss.png")
    write_json(out / "rows.json", {**provenance(), "swap": changed, "differences": differences_of(runs), "runs": runs})
    for name in ("loss.png", "rows.json"):
        console.print(f"wrote {(out / name).as_posix()}", highlight=False)
    check(runs)


def main() -> int:
    """Run, show and check; 0 when the losses agree and the digits are learnt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=DigitsTraining.epochs)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "demo-tf")
    options = parser.parse_args()
    out = options.out.resolve()
    console = Console()
    shutil.rmtree(out / "runs", ignore_errors=True)  # rows of an earlier demo must not pass for this one's
    try:
        for name, strategy in RUNS.items():
            console.rule(name)
            start(name, run_command(strategy, options.epochs, out / "runs"))
        paths = {name: run_path(out / "runs", strategy, 0) for name, strategy in RUNS.items()}
        show({name: json.loads(path.read_text()) for name, path in paths.items()}, out, console)
    except DemoError as error:
        console.print(f"[bold red]demo failed[/]: {error}", highlight=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
