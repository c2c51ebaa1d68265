# Pure: no MPI, threads, clock or environment. Reads files.
"""Machines that come with the package, by name; every number of theirs has its source in the file."""

import difflib
import re
from pathlib import Path

from coarse.errors import ConfigError
from coarse.hardware.machine import Accelerator, Machine
from coarse.hardware.machine_file import load_machine
from coarse.protocol.toml import TomlFile

FOLDER = Path(__file__).parent / "presets"
_NUMBER = re.compile(r"\s*[\w\".\- ]+=\s*(\d|\[\s*(\d|\[|$))")
"""Pattern of the begin of a line that states a number, or several."""


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, in order of the alphabet."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def preset_path(name: str) -> Path:
    """Return the file of a preset, for a user who wants to copy it and change a number."""
    names = preset_names()
    if name not in names:
        near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.4)
        offered = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(names)}"
        raise ConfigError(f"there is no preset {name!r}; {offered}", key="preset")
    return FOLDER / f"{name}.toml"


def load_preset(name: str) -> Machine:
    """Return the machine of a preset.

    Raises:
        ConfigError: there is none such; it has the nearest names.
    """
    return load_machine(preset_path(name))


def lines_without_source(toml: TomlFile) -> tuple[int, ...]:
    """Return the lines with numbers whose source no comment states, behind them or on the line above."""
    found, above = [], ""
    for number, line in enumerate(toml.text.splitlines(), start=1):
        if _NUMBER.match(line) and "#" not in line and not above.lstrip().startswith("#"):
            found.append(number)
        above = line
    return tuple(found)


def machine_path(name: str, option: str = "--machine") -> Path:
    """Return the file of a machine that is named by its path, or of a preset.

    Raises:
        ConfigError: as in `machine_named`.
    """
    is_path = name.endswith(".toml") or "/" in name
    if is_path or (name not in preset_names() and Path(name).is_file()):
        return Path(name)
    try:
        return preset_path(name)
    except ConfigError as error:
        own = "a machine of your own is the path of a .toml file"
        raise ConfigError(f"{option}: {error} ({own})", key=option.lstrip("-")) from None


def machine_named(name: str, option: str = "--machine") -> Machine:
    """Return the machine of a file, or of a preset.

    Raises:
        ConfigError: there is neither; it has the nearest names.
    """
    return load_machine(machine_path(name, option))


def accelerator_named(gpu: str) -> Accelerator:
    """Return the GPU of a preset that a text names, such as "V100" or "Tesla T4 16GB"."""
    words = set(re.findall(r"[a-z0-9]+", gpu.lower()))
    known = {one.name: one for one in (load_preset(name).accelerator for name in preset_names())}
    for name, accelerator in known.items():
        if set(name.lower().split()) <= words:
            return accelerator
    raise ConfigError(
        f"the peak of {gpu!r} is not known; there are {', '.join(known)}; state it in a machine file's [accelerator]",
        key="gpu",
    )
