"""Files of compute times: emulated seconds of each stretch of a script between two named points.

Points are where a script pushes, waits, has stepped, or has a pass's first gradient; stretches are medians over all
workers and all of their passes. So one file serves runs of other modes, machines and numbers of workers, and two runs
by one file are equal.
"""

import json
import math
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from coarse.errors import ConfigError
from coarse.protocol.whole_file import write_whole

_KIND = "compute times"
_TO = " -> "


class ComputeTimes(NamedTuple):
    """Contents of a file."""

    script: str
    """Program whose compute it is, and its arguments."""
    accelerator: str
    """Name of the machine's accelerator, whose seconds these are."""
    scale: float
    """Factor by which it was taken to compute faster than a core here."""
    stretches_s: Mapping[str, float]
    """Emulated seconds by stretch, as "push a -> push b"."""
    points_s: Mapping[str, float]
    """Emulated seconds that lead to a point, from any other."""

    def between_s(self, last: str, point: str) -> float | None:
        """Return the seconds from one point to the next.

        Of a stretch that no run had, as other modes have, they are those that lead to its end; None if the file lacks
        that, too.
        """
        seconds = self.stretches_s.get(stretch(last, point))
        return self.points_s.get(point) if seconds is None else seconds


def stretch(last: str, point: str) -> str:
    """Return the name of the stretch between two points."""
    return f"{last}{_TO}{point}"


def own_script() -> str:
    """Return the program that this process runs, as files of compute times state it."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def read_compute_times(path: Path, accelerator: str | None = None, script: str | None = None) -> ComputeTimes:
    """Return the contents of a file.

    Args:
        path: The file.
        accelerator: Name of the one that the job is emulated with; None for any.
        script: The program that is run, with arguments or without; None for any.

    Raises:
        ConfigError: there is no such file, it holds something else, or times of another accelerator or program.
    """
    try:
        read: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"no compute times in {path}: {error.strerror}; --save-compute writes them", key="compute"
        ) from None
    except ValueError as error:
        raise _refusal(path, f"it is no JSON ({error})") from None
    if not isinstance(read, dict) or read.get("kind") != _KIND:
        raise _refusal(path, f'its "kind" is not "{_KIND}"')
    fields: list[Any] = [read.get(key) for key in ComputeTimes._fields]
    times = ComputeTimes(*fields)
    if not isinstance(times.script, str) or not times.script:
        raise _refusal(path, 'it lacks the name of a "script"')
    if not isinstance(times.accelerator, str) or not _is_time(times.scale) or not times.scale:
        raise _refusal(path, 'it lacks the name of an "accelerator", or a "scale" above 0')
    for key in ("stretches_s", "points_s"):
        found = read.get(key)
        if not isinstance(found, dict) or not found:
            raise _refusal(path, f'it has no "{key}"')
        for name, seconds in found.items():
            if not _is_time(seconds):
                raise _refusal(path, f"{name!r} takes {seconds!r}, and seconds from 0 were wanted")
    if script is not None and _program(times.script) != _program(script):
        raise ConfigError(
            f"{path} has times of {_program(times.script)}, and this is {_program(script)}; save its own by "
            "--save-compute",
            key="compute",
        )
    if accelerator is not None and times.accelerator != accelerator:
        raise ConfigError(
            f"{path} has times of {times.accelerator}, and the machine's accelerator is {accelerator}; save some for "
            "it by --save-compute, or name the same accelerator in the machine's file",
            key="compute",
        )
    return times


def write_compute_times(
    path: Path, script: str, accelerator: str, scale: float, workers: Iterable[Mapping[str, list[float]]]
) -> None:
    """Write the medians of workers' measurements, whole or not at all.

    Args:
        path: The file.
        script: See ComputeTimes.
        accelerator: Name of the machine's.
        scale: How many times faster than a core here it was taken to compute.
        workers: Of each worker, by stretch, the emulated seconds of each of its passes.
    """
    stretches: defaultdict[str, list[float]] = defaultdict(list)
    points: defaultdict[str, list[float]] = defaultdict(list)
    for worker in workers:
        for name, measured in worker.items():
            stretches[name] += measured
            points[name.rpartition(_TO)[2]] += measured
    found = {
        "kind": _KIND,
        "script": script,
        "accelerator": accelerator,
        "scale": scale,
        "stretches_s": {name: median(measured) for name, measured in stretches.items()},
        "points_s": {name: median(measured) for name, measured in points.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(found, indent=1) + "\n")


def _program(script: str) -> str:
    """Return the program without its arguments."""
    return next(iter(shlex.split(script)), "")


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _refusal(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} holds no compute times: {why}; --save-compute writes them", key="compute")
