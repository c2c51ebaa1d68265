"""`coarse calibrate`: measurements of a memory device, saved as a machine file for predictions."""

import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from coarse.cli.progress import shown_tasks
from coarse.cli.wrong_input import wrong_input_ends_with_2
from coarse.errors import CapacityError, ConfigError
from coarse.hardware.machine_file import load_machine
from coarse.hardware.measure.calibrated import (
    MemoryMeasurements,
    calibrated_machine,
    calibrated_text,
    rate_of,
    rate_text,
    require_memory_devices,
    time_text,
)
from coarse.hardware.measure.memory import Subject, measure_memory, range_bytes
from coarse.hardware.measure.noise import NOISY, emulation_note, noise_note
from coarse.hardware.presets import machine_named
from coarse.hardware.quantities import require_name
from coarse.protocol.clock import WallClock
from coarse.protocol.place import DaxDevice, ExistingFile, NumaNode
from coarse.protocol.units import GIB, MIB
from coarse.storage.dax import open_dax
from coarse.storage.existing_file import open_existing
from coarse.storage.numa import create_on_node, require_node
from coarse.storage.processor import cpu_flags, cpu_name, last_level_bytes
from coarse.storage.region import MemoryFile
from coarse.storage.room import available_bytes

DEFAULT_BASE = "cxl-type3-asic"
DEFAULT_SECONDS = 20.0
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 3600.0
_MOST_REPEATS = 1000
_SPARE_BYTES = 256 * MIB
"""Bytes of the machine's memory for the processes that measure."""
app = typer.Typer(add_completion=False)


@app.command()
def calibrate(
    device: Annotated[str | None, typer.Argument(help="A devdax device, such as /dev/dax0.0.")] = None,
    numa: Annotated[int | None, typer.Option(help="A NUMA node, such as CXL memory that the kernel manages.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file that is there already, such as one of famfs.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the machine to this file (.toml).")] = None,
    name: Annotated[str | None, typer.Option(help="What the machine is called in the file.")] = None,
    base: Annotated[
        str, typer.Option(help="The machine, a preset or a .toml file, around the device in the file.")
    ] = DEFAULT_BASE,
    size_mib: Annotated[
        int | None, typer.Option(help="Of the device's memory to measure; by default 4 times the caches.")
    ] = None,
    processes: Annotated[int | None, typer.Option(help="At most; by default as many as cores.")] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each measurement.")] = 5,
    seconds: Annotated[float, typer.Option(help="About how long all may take.")] = DEFAULT_SECONDS,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Measure even if the device holds something.")] = False,
) -> None:
    """Measure a memory device's latency, streams, flushes and sums, and save it as a machine.

    Predictions run on that machine. What is measured is overwritten, and zero afterwards; a device or file that holds
    something is refused without --overwrite. Give one of: a devdax device, --numa, --file.
    """
    with wrong_input_ends_with_2(), ExitStack() as opened:
        place = _place(device, numa, file)
        own_name = name or re.sub(r"[^A-Za-z0-9]+", "-", f"calibrated {place}").strip("-")[:100]
        require_name("--name", own_name)
        around = machine_named(base, "--base")
        require_memory_devices(around)
        num_processes = _checked(processes, repeats, seconds, size_mib, save)
        console = Console()
        subject = _subject(place, size_mib, num_processes, repeats, seconds, opened)
        found = _measured(subject, overwrite=overwrite)
        if save is not None:
            save.write_text(calibrated_text(found, around, own_name), encoding="utf-8")
            assert load_machine(save) == calibrated_machine(found, around, own_name), "the file states another machine"
        console.print(_table(found))
        if note := emulation_note(found.cpu):
            _warn(note)
        if found.noise > NOISY:
            _warn(noise_note(found.noise))
        if save is not None:
            console.print(f"wrote {save}; try: coarse predict --machine {save} --workers 2",
                          highlight=False, markup=False, soft_wrap=True)  # fmt: skip


def _place(device: str | None, numa: int | None, file: Path | None) -> DaxDevice | ExistingFile | NumaNode:
    """Return the device, file or NUMA node to measure."""
    if sum(one is not None for one in (device, numa, file)) != 1:
        raise ConfigError("name one memory device: /dev/daxX.Y, --numa NODE or --file PATH", key="device")
    if device is not None:
        if os.path.isfile(device):
            raise ConfigError(f"{device} is a file and no device; name it by --file {device}", key="device")
        return DaxDevice(os.path.abspath(device))
    if file is not None:
        return ExistingFile(os.path.abspath(file))
    assert numa is not None
    return NumaNode(numa)


def _checked(
    processes: int | None, repeats: int, seconds: float, size_mib: int | None, save: Path | None
) -> int:
    """Return the largest number of processes; raise ConfigError for an option out of its range."""
    num_cores = len(os.sched_getaffinity(0))
    wanted = num_cores if processes is None else processes
    if not 1 <= wanted <= num_cores:
        raise ConfigError(
            f"--processes must lie in 1..{num_cores}, this machine's cores, got {wanted}; correct it", key="processes"
        )
    if not 2 <= repeats <= _MOST_REPEATS:
        raise ConfigError(f"--repeats must lie in 2..{_MOST_REPEATS}, got {repeats}; correct it", key="repeats")
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        raise ConfigError(
            f"--seconds must lie in {_LEAST_SECONDS:g}..{_MOST_SECONDS:g}, got {seconds:g}; correct it", key="seconds"
        )
    if size_mib is not None and not 1 <= size_mib < 1 << 40:
        raise ConfigError(f"--size-mib must be a number of MiB above 0, got {size_mib}; correct it", key="size_mib")
    if save is not None and (save.is_dir() or not save.parent.is_dir()):
        raise ConfigError(f"--save {save}: cannot be written; name a file in a folder that exists", key="save")
    return wanted


def _subject(
    place: DaxDevice | ExistingFile | NumaNode,
    size_mib: int | None,
    num_processes: int,
    repeats: int,
    seconds: float,
    opened: ExitStack,
) -> Subject:
    """Return the device, open and locked, with the settings of its measurement; errors name it."""
    cache_bytes = last_level_bytes()
    wanted_bytes = None if size_mib is None else size_mib * MIB
    try:
        if isinstance(place, NumaNode):
            node = require_node(place.number)
            room_bytes = max(0, min(node.room_bytes, available_bytes()) - _SPARE_BYTES)
            measured_bytes = range_bytes(node.total_bytes, cache_bytes, wanted_bytes, room_bytes)
            file, capacity_bytes = create_on_node(place.number, "coarse-calibrate", measured_bytes, 1), node.total_bytes
            opened.callback(os.close, file.descriptor)
        else:
            file = _opened_file(place)
            opened.callback(os.close, file.descriptor)
            capacity_bytes = file.capacity_bytes
            measured_bytes = range_bytes(
                capacity_bytes, cache_bytes, wanted_bytes, capacity_bytes, file.align_bytes
            )
    except (CapacityError, ConfigError) as error:
        raise type(error)(f"{place}: {error}") from None
    return Subject(
        place=str(place),
        file=file,
        capacity_bytes=capacity_bytes,
        measured_bytes=measured_bytes,
        cache_bytes=cache_bytes,
        num_processes=num_processes,
        repeats=repeats,
        seconds=seconds,
        cpu=cpu_name(),
        flags=cpu_flags(),
    )


def _opened_file(place: DaxDevice | ExistingFile) -> MemoryFile:
    return open_dax(place.path, None) if isinstance(place, DaxDevice) else open_existing(place.path, None)


def _measured(subject: Subject, *, overwrite: bool) -> MemoryMeasurements:
    with shown_tasks() as tasks:
        tell = tasks.begin(f"measure {subject.place}")
        return measure_memory(
            subject, overwrite=overwrite, clock=WallClock(), on_step=lambda share, _: tell(share)
        )


def _warn(note: str) -> None:
    Console(stderr=True).print(f"coarse: warning: {note}", highlight=False, soft_wrap=True)


def _table(found: MemoryMeasurements) -> Table:
    title = f"{found.place}, {found.cpu}: all numbers are measured, medians (lowest to highest of {found.num_repeats})"
    table = Table(title=title, title_justify="left")
    for head in ("", "value", "how"):
        table.add_column(head)
    table.add_row("latency", time_text(found.latency_s), "loads that wait for one another, no cache answers")
    for each in found.streams:
        for kind, how in (("load", "loads"), ("store", "stores"), ("copy", "copied within the device")):
            many = "processes together" if each.num_processes > 1 else "process"
            table.add_row(f"{kind}, {each.num_processes}", rate_text(rate_of(each, kind)),
                          f"{how}, {each.num_processes} {many}")  # fmt: skip
    _add_flushes(table.add_row, found)
    table.add_row("adder", rate_text(found.adder_bytes_per_s), "a sync core's sum in it, one core")
    table.add_row("optimizer", rate_text(found.optimizer_bytes_per_s), "Adam in it, bytes of parameters, one core")
    for kind in ("load", "store"):
        rate = rate_of(found.alone, kind)
        table.add_row(f"outstanding, {kind}", f"{found.outstanding_bytes(rate)} bytes", "rate of one process x latency")
    table.add_row("measured in", f"{found.measured_bytes / GIB:.2f} GiB",
                  f"of {found.capacity_bytes / GIB:.2f} GiB; caches {found.cache_bytes / GIB:.2f} GiB")  # fmt: skip
    table.add_row("noise", f"{found.noise:.0%}", "of the time the measuring processes waited for a core")
    return table


def _add_flushes(add_row: Callable[..., None], found: MemoryMeasurements) -> None:
    flushes = found.flushes
    if flushes is None:
        add_row("flush", "-", "not measured: this processor flushes no lines")
        return
    add_row("flush of a line", time_text(flushes.line_s), f"written, then {flushes.write_back} and sfence")
    add_row("store, flushed", rate_text(flushes.store_bytes_per_s), f"1 process, {flushes.write_back} behind each line")
    add_row("load, flushed", rate_text(flushes.load_bytes_per_s), f"1 process, {flushes.evicting} before each block")
