"""Command lines of jobs in guests, and the files that say where their ranks and memory are."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.guest import Guest
from tests.hosts.initramfs import SHARE

PROGRAMS = Path(__file__).parent / "programs"
MIB = 1 << 20
BIN = Path(sys.prefix) / "bin"
PYTHON = BIN / "python"


def sparse(path: Path, nbytes: int) -> Path:
    """Make a file of so many bytes that takes no room yet."""
    with open(path, "wb") as file:
        file.truncate(nbytes)
    return path


def written(guest: Guest, name: str, text: str) -> str:
    """Write a file that all guests of a network see; return its path there."""
    (guest.share / name).write_text(text)
    return f"{SHARE}/{name}"


def configuration(
    guest: Guest, name: str, places: Sequence[str], *, workers: int = 2, settings: str = ""
) -> dict[str, str]:
    """Return the environment of a job of workers and of a memory device for each place (lines of TOML)."""
    table = "".join(f'[[rank]]\nrank = {rank}\nrole = "worker"\n' for rank in range(workers))
    for rank, place in enumerate(places, start=workers):
        table += f'[[rank]]\nrank = {rank}\nrole = "memory_device"\n{place}\n'
    partition = written(guest, f"{name}.partition.toml", table)
    return {"COARSE_CONFIG": written(guest, f"{name}.toml", f'partition = "{partition}"\n{settings}\n')}


def mpirun(
    ranks: int, program: str | Path, *arguments: object, options: Sequence[str] = (),
    interpreter: Sequence[object] = (PYTHON,),
) -> str:
    """Return the command line of a job under mpirun; a program without a folder is one of PROGRAMS."""
    script = PROGRAMS / program if isinstance(program, str) else program
    return shlex.join(map(str, [BIN / "mpirun", "-n", ranks, *options, *interpreter, script, *arguments]))
