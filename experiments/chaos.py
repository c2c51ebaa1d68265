"""Kill processes of a job of `coarse run --restarts` at random, again and again, and compare what it prints at its end.

python experiments/chaos.py --runs 10 -- coarse run --workers 2 --devices 2 --restarts 100 experiments/train_gpt.py

The job runs once undisturbed, then so many times with a random process of it killed every few seconds: a worker, a
memory device, a process that watches a rank, a worker of a data loader, or mpirun; never `coarse run` itself. Lines
with --compare in them must be the same in all runs, and the status 0.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Held(NamedTuple):
    """Holdings of a process: resident memory of its own, descriptors and mappings."""

    kib: int
    descriptors: int
    mappings: int


class Growth(NamedTuple):
    """Holdings of `coarse run` at the last kill beside the third, since the first starts load what others need."""

    memory: float
    """Times as much."""
    descriptors: int
    """So many more; a few of either sign, since kills come at any moment of a start."""
    mappings: int


class Outcome(NamedTuple):
    """How a run ended."""

    status: int
    lines: tuple[str, ...]
    """Those to be compared, each once, sorted."""
    killed: Counter[str]
    restarts: int
    seconds: float
    left: tuple[str, ...]
    """Processes of the job, and files of /dev/shm, that are there behind its end and were not before."""
    growth: Growth
    text: str


def main() -> int:
    """Run, compare, and return 0 where all runs ended alike."""
    given, command = parse_arguments()
    quiet = run(command, given.compare, None, 0.0)
    print(f"undisturbed: status {quiet.status}, {quiet.seconds:.1f} s", *quiet.lines, sep="\n  ", flush=True)
    if quiet.status or not quiet.lines:
        print(quiet.text, f"chaos: no run to compare with, or no line with {given.compare!r} in it", sep="\n")
        return 1
    same = 0
    for number in range(given.runs):
        found = run(command, given.compare, random.Random(given.seed + number), given.every)
        is_same = (found.status, found.lines) == (0, quiet.lines)
        is_same = is_same and not found.left
        same += is_same
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.killed.items())) or "nothing"
        verdict = "the same" if is_same else f"OTHERS (seed {given.seed + number}, status {found.status})"
        print(
            f"run {number + 1}: killed {kinds}; {found.restarts} restarts, {found.seconds:.1f} s, the launcher's "
            f"memory x {found.growth.memory:.2f}, descriptors {found.growth.descriptors:+d}, mappings "
            f"{found.growth.mappings:+d}: {verdict}", *found.left, flush=True,
        )  # fmt: skip
        if not is_same:
            print(found.text)
    print(f"{same} of {given.runs} runs ended as the undisturbed one (measured)")
    return 0 if same == given.runs else 1


def parse_arguments(arguments: list[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the command of the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="runs with kills")
    parser.add_argument("--every", type=float, default=6.0, metavar="S", help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each has the next")
    parser.add_argument("--compare", default="SHA-256", metavar="REGEX", help="marks the lines that must be equal")
    parser.add_argument("command", nargs="+", help="after --, a line that begins with coarse run")
    given = parser.parse_args(arguments)
    return given, given.command


def run(command: list[str], compare: str, chance: random.Random | None, every_s: float) -> Outcome:
    """Run a job to its end; `chance` draws whom to kill and when, None kills nobody."""
    begin_s = time.monotonic()  # noqa: TID251 (the clock of the machine that is disturbed)
    killed: Counter[str] = Counter()
    before, held = traces(command), list[Held]()
    path = Path(f"/tmp/chaos-{os.getpid()}.txt")
    with path.open("w+b") as output:
        job = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            while True:
                wait_s = None if chance is None else chance.uniform(0.5, 1.5) * every_s
                with suppress(subprocess.TimeoutExpired):
                    status = job.wait(wait_s)
                    break
                if chance is not None and (kind := kill_one(job.pid, chance)):
                    killed[kind] += 1
                    held.append(held_by(job.pid))
        finally:
            job.terminate()  # where this program is interrupted
            job.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    path.unlink()
    lines = sorted({line.strip() for line in text.splitlines() if re.search(compare, line)})  # an end may come again
    seconds = time.monotonic() - begin_s  # noqa: TID251
    restarts = len(re.findall(r"the job starts again", text))
    left = tuple(traces(command) - before)
    return Outcome(status, tuple(lines), killed, restarts, seconds, left, growth_of(held), text)


def traces(command: list[str]) -> set[str]:
    """Processes whose line has the command's last words, and files of /dev/shm."""
    found = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # ended meanwhile
            line = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
            if entry.name.isdecimal() and int(entry.name) != os.getpid() and line.endswith(" ".join(command[-2:])):
                found.add(f"process {entry.name}")
    return found


def held_by(pid: int) -> Held:
    """Return the holdings of a process; 1 of each of one that has ended."""
    entry = Path(f"/proc/{pid}")
    with suppress(OSError):
        found = re.search(r"RssAnon:\s+(\d+)", (entry / "status").read_text())
        descriptors, mappings = list((entry / "fd").iterdir()), (entry / "maps").read_text().splitlines()
        return Held(int(found[1]) if found else 1, len(descriptors), len(mappings))
    return Held(1, 1, 1)


def growth_of(held: Sequence[Held]) -> Growth:
    """The last beside the third; none where there were fewer kills."""
    if len(held) < 4:
        return Growth(1.0, 0, 0)
    first, last = held[2], held[-1]
    return Growth(last.kib / first.kib, last.descriptors - first.descriptors, last.mappings - first.mappings)


def kill_one(launcher: int, chance: random.Random) -> str:
    """Kill a process below the launcher; return its kind, "" where there is none."""
    found = sorted(descendants(launcher))
    if not found:
        return ""
    pid = chance.choice(found)
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        if line.strip() == "cat":  # it holds the launcher's own host of a cluster in a box
            return ""
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
    except OSError:  # ended meanwhile
        return ""
    return kind_of(line, is_child=parent == launcher)


def kind_of(line: str, *, is_child: bool) -> str:
    """Name a process of a job by its command line, and whether it is a child of the launcher."""
    if re.search("mpirun|prterun|prte|nsenter", line.split(" ", 1)[0]) or "/agent " in line:
        return "mpirun"
    if line.startswith("unshare "):
        return "node"
    if "exit_reporter.py" in line:
        return "watcher"
    if "stand_in.py" in line:
        return "stand-in"
    if "server.py" in line:  # ranks that it forked have its command line
        return "importer" if is_child else "forked rank"
    return "device" if "coarse.launch.device" in line else "worker"


def descendants(root: int) -> list[int]:
    """The processes below one, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # ended meanwhile
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.append(child)
            waiting.append(child)
    return found


if __name__ == "__main__":
    sys.exit(main())
