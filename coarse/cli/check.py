"""`coarse check`: the configuration that a job would read, and the environment that it would find here."""

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import coarse
from coarse.cli.lacks import Lack, lacks_of, this_machine
from coarse.cli.own_mode import SetOptions
from coarse.cli.wrong_input import wrong_input_ends_with_2
from coarse.errors import CapacityError, ConfigError, GpuError, UnsupportedError
from coarse.gpu.available import gpus
from coarse.launch.mpirun import missing_defaults, mpirun_version, parameter_files, usable_mpirun
from coarse.protocol.config import Config, load_config, require_mode
from coarse.protocol.distribution import VERSION
from coarse.protocol.partition import PartitionTable
from coarse.protocol.partition_file import stated_partition
from coarse.protocol.place import Anywhere
from coarse.protocol.units import GIB, MIB
from coarse.session import require_processor
from coarse.storage.device_file import open_device_file
from coarse.storage.lent import why_not_here
from coarse.storage.numa import memory_nodes
from coarse.storage.room import available_bytes, binding_limit, total_bytes
from coarse.strategy.named import options_from, placement_of, require_classes, strategy_of
from coarse.transport.mpi_library import HOW_TO_GET_MPI, is_open_mpi, loaded_library

app = typer.Typer(add_completion=False)
_FIRST_SUM_S = 120
"""Limit of the smallest job, which takes two seconds: `startup_timeout_s` twice."""


@app.command()
def check(
    config: Annotated[Path | None, typer.Option(help="A TOML file with the configuration.")] = None,
    node: Annotated[
        str | None, typer.Option(help="Which node of the partition table this machine is; without it, all of them.")
    ] = None,
    strategy_named: Annotated[
        str | None, typer.Option("--strategy", help="Check a strategy instead: MODULE:CLASS or FILE.py:CLASS.")
    ] = None,
    options: SetOptions = None,
    start: Annotated[
        bool, typer.Option("--start", help="Also start the smallest job: two workers and a memory device add an array.")
    ] = False,
) -> None:
    """Validate the configuration, show what this machine offers and lacks; or check a strategy of your own."""
    with wrong_input_ends_with_2():
        if strategy_named is not None:
            _check_strategy(strategy_named, options or ())
            return
        settings = load_config(config, os.environ)
        strategy = strategy_of(settings)
        memories: dict[str, str] = {}
        if settings.partition is not None:
            partition = stated_partition(settings.partition)
            placement_of(partition, settings, strategy)
            memories = _memories(partition, node, settings.device_capacity_bytes)
        elif node is not None:
            raise ConfigError(f"--node {node} is a node of a partition table, and no partition is configured")
        mpirun = usable_mpirun(sys.executable, os.environ)
        missing, why_copied = missing_defaults(parameter_files(mpirun), os.environ), why_not_here()
        seen, why_no_gpus = _gpus()
        environment = _environment(mpirun) | {
            "GPUs": seen or f"none: {why_no_gpus}",
            "plain mpirun": "lacks what coarse run sets" if missing else "has what coarse run sets",
            "tensors in ordinary memory": _plain_tensors(settings.lend_from_bytes, why_copied),
        }
    console = Console()
    console.print(_table("configuration", _settings(settings)))
    if memories:
        console.print(_table("memory of the devices, on this machine", memories))
    console.print(_table("environment", environment))
    _print_lacks(lacks_of(this_machine(missing, why_copied, available_bytes(), why_no_gpus)))
    if start:
        _start_first_sum()


def _print_lacks(lacks: Sequence[Lack]) -> None:
    """Print what this machine lacks, what follows, and what to type: whole lines, to be copied."""
    if not lacks:
        print("This machine lacks nothing that coarse looks for.")
        return
    print("This machine lacks:")
    for number, lack in enumerate(lacks, start=1):
        print(f"{number}. {lack.lack}: {lack.effect}.")
        print("".join(f"     {line}\n" for line in lack.remedy.splitlines()), end="")


def _start_first_sum() -> None:
    """Run the smallest job by `coarse run`; print what came of it, and exit with status 1 if it failed."""
    command = [sys.executable, "-m", "coarse", "run", "--workers", "2", "--devices", "1", "-m", "coarse.cli.first_sum"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COARSE_")}
    try:
        done = subprocess.run(
            command, cwd="/", env=environ, capture_output=True, text=True, timeout=_FIRST_SUM_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        print(f"the smallest job did not end within {late.timeout:g} s: {' '.join(command)}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(done.stdout, end="")
    if done.returncode:
        print(done.stderr, end="", file=sys.stderr)
        print(f"the smallest job ended with status {done.returncode}: {' '.join(command)}", file=sys.stderr)
        raise typer.Exit(1)


def _check_strategy(mode: str, options: Sequence[str]) -> None:
    """Print a line for each check; exit with status 1 after a failed one."""
    from coarse.cli.check_strategy import findings  # the simulator takes time to import

    require_mode(mode)
    require_classes(options, [mode])
    for finding in findings(mode, options_from(options, mode)):
        print(f"{finding.what}: {'' if finding.is_right else 'wrong: '}{finding.said}", flush=True)
        if not finding.is_right:
            raise typer.Exit(1)


def _settings(settings: Config) -> dict[str, str]:
    """Return the settings in force, by the keys of a configuration file."""
    rows: dict[str, str] = {}
    for key, value in settings.to_mapping().items():
        within = {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
        rows |= {name: "not set" if item is None else str(item) for name, item in within.items()}
    return rows


def _plain_tensors(lend_from_bytes: int, why_copied: str) -> str:
    """Return how tensors outside of device memory reach the devices here."""
    if not lend_from_bytes:
        return "copied to devices and back (lend_from_bytes = 0)"
    if why_copied:
        return f"copied to devices and back: {why_copied}"
    size = f"{lend_from_bytes / MIB:g} MiB" if lend_from_bytes >= MIB else f"{lend_from_bytes} bytes"
    return f"read and written where they lie from {size} on, by process_vm_readv and process_vm_writev"


def _memories(partition: PartitionTable, node: str | None, wanted_bytes: int | None) -> dict[str, str]:
    """Return by rank how this machine opens each `memory` that the partition table names.

    A given `node` limits this to that node's ranks.
    """
    nodes = sorted({place.node for place in partition.places})
    if node is not None and node not in nodes:
        raise ConfigError(f"--node {node} is no node of the partition table, which has {', '.join(nodes)}")
    found = {}
    for own in partition.places:
        if own.memory == Anywhere() or node not in (None, own.node):
            continue
        neighbours = [place for place in partition.places if place.node == own.node]
        try:
            file = open_device_file(own.rank, neighbours, "coarse-check", wanted_bytes)
        except (CapacityError, ConfigError, GpuError) as refused:
            found[f"rank {own.rank}"] = f"refused: {refused}"
            continue
        os.close(file.descriptor)
        capacity_bytes = file.capacity_bytes if file.gpu is None else file.gpu.nbytes
        found[f"rank {own.rank}"] = f"{own.memory}, up to {capacity_bytes / GIB:.1f} GiB"
    return found


def _environment(mpirun: str) -> dict[str, str]:
    """Return the environment of a job here, by name."""
    return {
        "coarse": f"{VERSION} in {Path(coarse.__file__).parent}",
        "Python": f"{platform.python_version()} ({sys.executable})",
        "processor": _processor(),
        "MPI": _mpi_library(),
        "mpirun": f"{mpirun} ({mpirun_version(mpirun)})",
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{available_bytes() / GIB:.1f} GiB free of {total_bytes() / GIB:.1f} GiB{_group_said()}",
        "NUMA nodes": "\n".join(map(str, memory_nodes())) or "none",
    }


def _group_said() -> str:
    """Return a line on the control group that leaves less memory than the kernel has, or nothing."""
    limit = binding_limit()
    return "" if limit is None else f"\n{limit}"


def _processor() -> str:
    """Return the processor's kind; raise ConfigError if no job can run on it."""
    try:
        require_processor()
    except UnsupportedError as refused:
        raise ConfigError(str(refused)) from refused
    return platform.machine()


def _gpus() -> tuple[str, str]:
    """Return a line for each GPU with the GPUs that it reaches, and the reason why there are none; one of the two."""
    try:
        infos, reaches = gpus().infos(), gpus().can_access
        lines = []
        for info in infos:
            peers = [other.number for other in infos if other != info and reaches(info.number, other.number)]
            others = f"; peer access to {', '.join(map(str, peers)) or 'no other'}" if len(infos) > 1 else ""
            lines.append(f"{info}{others}")
    except (ConfigError, GpuError) as refused:
        return "", str(refused)
    return "\n".join(lines), "" if lines else "CuPy sees none"


def _mpi_library() -> str:
    """Return the MPI library without starting MPI; raise ConfigError if `coarse run` cannot start its ranks."""
    import mpi4py

    mpi4py.rc.initialize = False
    library = loaded_library()
    if not is_open_mpi(library):
        raise ConfigError(f"mpi4py has loaded {library}, and coarse run starts ranks of Open MPI 5; {HOW_TO_GET_MPI}")
    return library


def _table(title: str, rows: dict[str, str]) -> Table:
    """Return a table of names and values, side by side."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, escape(value))
    return table
