"""`coarse run --machine NAME --modes ...`: a script in several modes in turn, with equal compute times."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from coarse.cli.fields import Asked
from coarse.cli.report.run import Result, Run, write_run
from coarse.cli.report.timeline import Timeline
from coarse.errors import ConfigError
from coarse.protocol.config import Config, require_mode
from coarse.protocol.run_file import RUN_FILE, WITHOUT_RESULT
from coarse.strategy.named import mode_name
from coarse.strategy.sharding import LIVE

_FAMILIES = {"compute.json": False, "compute-sharded.json": True}
"""Names of files of compute times, each with True if its modes shard a model. The modes of a file have equal points."""
_MEASURED = "measured"
_MEANS = ("iteration_s", "compute_s", "exposed_s")


def modes_in(text: str, mode: str | None, configured: Config) -> list[str]:
    """Return the modes of a list with commas; raise ConfigError if another option contradicts it."""
    if mode is not None:
        raise ConfigError(f"--modes {text} and --mode {mode} both say which mode; give one of the two", key="modes")
    emulate = configured.emulate
    if emulate is None:
        raise ConfigError("--modes compares modes on a machine that is not here; give --machine too", key="modes")
    if emulate.save_compute is not None:
        kept = " and ".join(_FAMILIES)
        raise ConfigError(f"--modes keeps its times of compute in {kept}; leave out --save-compute", key="modes")
    modes = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for each in modes:
        if each not in LIVE:
            require_mode(each)
    return modes


def run_in(modes: Sequence[str], asked: Asked, configured: Config, run: Callable[[str, Asked], int]) -> int:
    """Run a script once for its compute times, unless a file has them, and then in each mode by these.

    Sharded modes have other points than data-parallel ones, and so a file of their own.

    Args:
        modes: At least one mode.
        asked: Settings of [emulate] that the command line states.
        configured: Configuration from all sources.
        run: Function that runs the script in a mode by settings, and returns the status.

    Returns:
        The first status of a job that has failed, else 0; then the modes have been printed and drawn beside each other.
    """
    assert configured.emulate is not None
    folder = Path(configured.emulate.out)
    times = dict.fromkeys(modes, configured.emulate.compute_file or "")
    measured = {name: [mode for mode in modes if (mode in LIVE) is kind] for name, kind in _FAMILIES.items()}
    for name, family in measured.items() if configured.emulate.compute_file is None else ():
        if not family:
            continue
        path = (folder / name).absolute()
        path.unlink(missing_ok=True)
        times |= dict.fromkeys(family, str(path))
        _announce(f"mode {family[0]}, for the times of compute")
        measuring = folder / f"{_MEASURED}-{_folder_of(family[0])}"
        status = run(family[0], {**asked, "save_compute": str(path), "out": str(measuring)})
        if status not in (0, WITHOUT_RESULT):
            return status
        _require_written(path, family[0])
    accounts = {mode: folder / _folder_of(mode) / RUN_FILE for mode in modes}
    for number, (mode, account) in enumerate(accounts.items()):
        account.unlink(missing_ok=True)
        _announce(f"mode {mode} ({number + 1} of {len(modes)})")
        status = run(mode, {**asked, "compute": times[mode], "out": str(account.parent)})
        if status not in (0, WITHOUT_RESULT):
            return status
        _require_written(account, mode)
    _show({mode: json.loads(account.read_text(encoding="utf-8")) for mode, account in accounts.items()}, folder)
    return 0


def _folder_of(mode: str) -> str:
    return mode.replace("/", "-").replace(":", "-")


def _require_written(path: Path, mode: str) -> None:
    """Raise ConfigError if a successful run left no file, so that an earlier one is not taken for it."""
    if not path.exists():
        raise ConfigError(f"mode {mode}: the script has ended and {path} was not written; does it call init()?")


def _announce(what: str) -> None:
    print(f"coarse: {what}", file=sys.stderr, flush=True)


def _show(documents: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    from rich.console import Console

    from coarse.cli.report.command import show  # which draws, and takes its time

    without = [mode_name(mode) for mode, document in documents.items() if not document["rows"]]
    compared = {mode: document for mode, document in documents.items() if document["rows"]}
    if not compared:
        return
    iterations = {mode: _of_workers(document) for mode, document in compared.items()}
    count = min(map(len, iterations.values()))
    results = []
    for mode, document in compared.items():
        last = iterations[mode][-count:]
        iteration_s, compute_s, exposed_s = (fmean(row[key] for rows in last for row in rows) for key in _MEANS)
        results.append(
            Result(
                name=mode_name(mode), policy=document["rows"][0]["policy"], iteration_s=iteration_s,
                compute_s=compute_s, exposed_s=exposed_s, idle_s=0.0,
            )
        )  # fmt: skip
    first = next(iter(compared.values()))
    run = Run(
        kind=first["kind"],
        title=f"{first['title']}, the last {count} iterations",
        inputs=first["inputs"],
        results=tuple(results),
        timelines=tuple(
            Timeline.from_mapping({**values, "title": mode_name(mode)})
            for mode, document in compared.items() for values in document["timelines"]
        ),
        notes=tuple(f"Left out {name}: its run has no result." for name in without),
    )
    write_run(run, folder)
    show(run, folder, Console())


def _of_workers(document: Mapping[str, Any]) -> list[tuple[dict[str, float], ...]]:
    """Return the iterations of all workers, one after the other, as far as all have them."""
    by_worker: dict[int, list[dict[str, float]]] = {}
    for row in document["iterations"]:
        by_worker.setdefault(row["worker"], []).append({**row, "iteration_s": row["end_s"] - row["begin_s"]})
    count = min(map(len, by_worker.values()))
    return list(zip(*(rows[-count:] for rows in by_worker.values()), strict=True))
