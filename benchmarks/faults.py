"""What commits cost, and how soon a job goes on whose worker was killed; torchrun that restarts from a file beside it.

python benchmarks/faults.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

HERE = Path(__file__).parent
JOB = HERE / "faults_job.py"
WORKERS, DEVICES = 2, 2
MOST_COST, MOST_MEMCPYS, MOST_UNCHECKED, MOST_BEYOND_S = 0.02, 3.0, 1.5, 1.0
Events = dict[int, list[dict[str, Any]]]


def main() -> None:
    """Run all parts, one after another, and write a table and a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of the large state, taken twice more")
    parser.add_argument("--name", default="faults", help="of the result")
    given = parser.parse_args()
    from benchmarks.provenance import provenance
    from benchmarks.rendering import print_table, write_json

    rows = [*commit_rows(), *large_rows(given.gigabytes), *recovery_rows()]
    print_table("Commits and recovery, 2 workers and 2 devices; medians, measured", ["what", "found", "target"], [
        [row["what"], row["shown"], row["target"]] for row in rows
    ])  # fmt: skip
    write_json(given.name, provenance("faults.py", sys.argv[1:], 1) | {"rows": rows})


def commit_rows() -> list[dict[str, Any]]:
    """The cost of a commit in a step of the demo's GPT."""
    events = run("commit", "--restarts", "1")
    found = events[0][0]
    plain, kept = statistics.median(found["plain_s"]), statistics.median(found["kept_s"])
    alone = statistics.median(found["commit_s"])
    return [
        row("steps of the demo's GPT with commit() over those without", kept / plain, "", f"{kept / plain:.4f}"),
        row("commit() by itself over that step", alone / plain, "at most 2 %", f"{100 * alone / plain:.2f} %"),
    ]


def large_rows(gigabytes: float) -> list[dict[str, Any]]:
    """The cost of a large state in copies of its bytes."""
    events = run("large", "--restarts", "1", words=(str(gigabytes),))
    memcpy_s = events[0][0]["memcpy_s"]
    checked, unchecked = (
        max(events[rank][0][name] for rank in range(WORKERS)) / memcpy_s for name in ("commit_s", "unchecked_s")
    )
    what = f"commit() of {gigabytes:g} GB, half by each worker, in memcpys of all of it by one process"
    return [
        row(what, checked, f"at most {MOST_MEMCPYS:g}x", f"{checked:.2f}x"),
        row(f"{what}, without checksums", unchecked, f"at most {MOST_UNCHECKED:g}x", f"{unchecked:.2f}x"),
    ]


def recovery_rows() -> list[dict[str, Any]]:
    """Seconds from a kill to where training goes on, beside an empty job and torchrun."""
    empty_s = statistics.median(empty() for _ in range(3))
    found = [row("an empty job of these ranks, to init()'s return, s", empty_s, "", f"{empty_s:.2f} s")]
    for name, options in (("warm", ()), ("--cold", ("--cold",))):
        events = run("train", "--restarts", "9", *options)
        times = recoveries(events)
        beyond = statistics.median(total - own for total, own in times) - empty_s
        total = statistics.median(total for total, _ in times)
        target = "at most 1 s" if name == "warm" else ""
        found.append(row(f"kill to Resumable's return, {name}", total, "", f"{total:.2f} s"))
        found.append(row(f"the same without the script's own lines, less the empty job, {name}", beyond, target,
                         f"{beyond:.2f} s"))  # fmt: skip
    events = run_by_torchrun()
    total = statistics.median(total for total, _ in recoveries(events))
    saved = [event["saved_s"] for event in events[0] if event["what"] == "step"]
    found.append(row("kill to the loaded file, torchrun --max-restarts", total, "", f"{total:.2f} s"))
    saved_s = statistics.median(saved)
    found.append(row("the file of each step there, by safetensors", saved_s, "", f"{saved_s:.3f} s"))
    return found


def row(what: str, value: float, target: str, shown: str) -> dict[str, Any]:
    """A row of the table."""
    return {"what": what, "value": value, "target": target, "shown": shown}


def recoveries(events: Events) -> list[tuple[float, float]]:
    """Of each kill the seconds until worker 0 has its state again, and those of the script's own lines among them."""
    kills = [event["at_s"] for event in events[1] if event["what"] == "killed"]
    found = []
    for killed_s in kills:
        back = next(e for e in events[0] if e["what"] == "restored" and e["at_s"] > killed_s)
        found.append((back["at_s"] - killed_s, back["made_s"] - back["joined_s"]))
    return found


def run(part: str, *options: str, words: tuple[str, ...] = ()) -> Events:
    """Run a part under `coarse run`; what its ranks noted."""
    command = [sys.executable, "-m", "coarse", "run", "--workers", str(WORKERS), "--devices", str(DEVICES), *options]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, str(JOB), part, folder, *words], check=True, env=environ())
        return noted(Path(folder))


def run_by_torchrun() -> Events:
    """Run the part "file" under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]
    with tempfile.TemporaryDirectory() as folder:
        line = [*command, "--max-restarts", "9", str(JOB), "file", folder]
        subprocess.run(line, check=True, env=environ(), stderr=subprocess.DEVNULL)
        return noted(Path(folder))


def environ() -> dict[str, str]:
    """One thread a worker, whoever starts it."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}


def noted(folder: Path) -> Events:
    """By rank the events that it noted."""
    return {
        rank: [json.loads(line) for line in (folder / f"events-{rank}.jsonl").read_text().splitlines()]
        for rank in range(WORKERS)
    }


def empty() -> float:
    """Seconds from the start of a job that does nothing until its worker 0 has joined."""
    with tempfile.TemporaryDirectory() as folder:
        script, said = Path(folder) / "empty.py", Path(folder) / "said"
        script.write_text(
            "import sys, time\nimport coarse\ncoarse.init()\n"
            "if coarse.rank() == 0:\n    open(sys.argv[1], 'w').write(repr(time.perf_counter()))\n"
        )
        command = [sys.executable, "-m", "coarse", "run", "--workers", str(WORKERS), "--devices", str(DEVICES)]
        begin_s = time.perf_counter()
        subprocess.run([*command, str(script), str(said)], check=True, env=environ())
        return float(said.read_text()) - begin_s


if __name__ == "__main__":
    main()
