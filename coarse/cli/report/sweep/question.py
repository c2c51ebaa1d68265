"""Question of a sweep: settings of `coarse predict` and fields of machines, each checked, and its cells."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from coarse.cli.own_model.source import own_model
from coarse.cli.own_model.traces.file import SUFFIXES
from coarse.cli.report.outcome import name_of_mode, outcome_of
from coarse.cli.report.prediction import scenarios_of
from coarse.cli.report.ranges import ranges_of
from coarse.cli.report.sharded_prediction import AnyMode, any_modes_of
from coarse.cli.report.sweep.points import Point, Value, text_of
from coarse.cli.report.sweep.rows import Row
from coarse.errors import CoarseError, ConfigError
from coarse.hardware.compute import THROUGHPUTS
from coarse.hardware.machine_field import changed_machine, field_names, has_times, is_machine_field
from coarse.hardware.models import MODELS
from coarse.hardware.presets import accelerator_named, machine_path
from coarse.luwu.simulation.capacity import MODES as LUWU_MODES
from coarse.protocol.fields import Option, options_of
from coarse.protocol.toml import TomlFile
from coarse.simulation.question import Question, slow_down
from coarse.strategy.named import BUILT_IN, class_named, made, mode_name, options_from
from coarse.strategy.named_sharding import names_sharding
from coarse.strategy.sharding import PREDICTED, Sharding
from coarse.strategy.strategy import Strategy

SETTINGS = {option.key: option for option in options_of(Question).values() if option.says and option.says.is_swept}
"""Options of `coarse predict`, by their names in rows."""
WHOLE = (*(key for key, option in SETTINGS.items() if option.kind is int), "num_nodes", "disks.num_optimizer_disks")
"""Keys whose values are whole numbers."""
_NONE = "none"
"""Text of a list without elements. The elements of other lists are joined by "+"."""
_FORMAT = 5
"""Version of a question's record."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Mode at one point."""

    settings: Mapping[str, Value]
    """All settings, varied or not."""
    changes: Mapping[str, Value]
    """Changed fields of the machine."""
    toml: TomlFile
    """File of the machine."""
    mode: AnyMode
    values: tuple[str, ...]
    """Values of the varied keys, as they stand in a row."""
    intervals: tuple[str, ...] = ()
    num_samples: int = 0
    """Number of alternative inputs, as in the sweep."""

    @property
    def name(self) -> str:
        """Name of the mode in rows."""
        return name_of_mode(self.mode)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Points in their order, with their common settings; checked when it is made."""

    base: Mapping[str, Value]
    """Settings that no point states; `machine` and `model` at least, unless points do."""
    points: tuple[Point, ...]
    intervals: tuple[str, ...] = ()
    """Intervals of inputs, as options state them."""
    num_samples: int = 0
    """Alternative inputs at each point, beside the two ends; 0: none."""
    machines: Mapping[str, TomlFile] = field(init=False)
    """Files of the machines, by the names that occur."""

    def __post_init__(self) -> None:
        keys = self.keys
        for key in keys:
            if key not in SETTINGS and not self._own_modes(key) and not is_machine_field(key):
                raise self._unknown(key)
        names = dict.fromkeys(text_of(value) for value in self._values_of("machine"))
        machines = {name: TomlFile.read(machine_path(name)) for name in names}
        object.__setattr__(self, "machines", machines)
        for toml in machines.values():
            changed_machine(toml, {})
            ranges_of(toml, self.intervals, self.num_samples, 0)
        for key in dict.fromkeys((*self.base, *keys)):
            for value in self._values_of(key):
                self._check(key, value)

    @property
    def keys(self) -> tuple[str, ...]:
        """Varied keys, in order."""
        return tuple(self.points[0])

    def cells(self) -> Iterator[Cell]:
        """Yield every mode of every point, in order."""
        for point in self.points:
            settings = {**self.base, **{key: value for key, value in point.items() if key in SETTINGS}}
            own = {key: text_of(value) for key, value in point.items() if self._own_modes(key)}
            changes = {key: value for key, value in point.items() if key not in SETTINGS and key not in own}
            if own:
                options = (*_options(settings), *(f"{key}={text}" for key, text in own.items()))
                settings["options"] = "+".join(options)
            for mode in _modes(settings):
                toml = self.machines[text_of(settings["machine"])]
                yield Cell(
                    settings=settings,
                    changes=changes,
                    toml=toml,
                    intervals=self.intervals,
                    num_samples=self.num_samples,
                    mode=mode,
                    values=tuple(map(text_of, point.values())),
                )

    def record(self) -> dict[str, Any]:
        """Return plain values that are equal only for equal questions."""
        texts = {name: toml.text.encode() for name, toml in self.machines.items()}
        models = (text_of(value) for value in self._values_of("model"))
        modes = (text_of(value).replace("+", ",").split(",") for value in self._values_of("modes"))
        own = {mode.rpartition(":")[0].strip() for names in modes for mode in names}
        texts |= {name: Path(name).read_bytes() for name in own if name.endswith(".py") and Path(name).is_file()}
        texts |= {model: path.read_bytes() for model in models if (path := _file_of(model)) is not None}
        return {
            "format": _FORMAT,
            **{key: text_of(value) for key, value in sorted(self.base.items())},
            **{f"file of {name}": hashlib.sha256(text).hexdigest() for name, text in sorted(texts.items())},
            "intervals": list(self.intervals),
            "samples": self.num_samples,
            "varied": list(self.keys),
            "points": [list(map(text_of, point.values())) for point in self.points],
        }

    def notes(self) -> Iterator[str]:
        """Yield sentences on the varied keys that a reader should know."""
        of_machine = [key for key in self.keys if key not in SETTINGS and not self._own_modes(key)]
        for key in of_machine:
            if any(has_times(toml, key) for toml in self.machines.values()):
                yield (
                    f"{key}: the machine's file also has a table of measured times for this wire, so a transfer alone "
                    "gets no faster than that table by a higher rate."
                )

    def _values_of(self, key: str) -> tuple[Value, ...]:
        """Return each value of a key once; the base's if no point states one."""
        if key in self.base:
            return (self.base[key],)
        stated = {text_of(point[key]): point[key] for point in self.points if key in point}
        return tuple(stated.values())

    def _own_modes(self, key: str) -> list[str]:
        """Return the user's own modes of which a key such as Mine.every is an option."""
        kind, _, option = key.partition(".")
        texts = (text_of(value).replace("+", ",") for value in self._values_of("modes"))
        names = (name.strip() for text in texts for name in text.split(","))
        return [name for name in names if option and ":" in name and mode_name(name) == kind]

    def _check(self, key: str, value: Value) -> None:
        """Raise ConfigError if a value is wrong in itself, for any other settings."""
        for own in self._own_modes(key):
            options = options_from((f"{key}={text_of(value)}",), own)
            made(class_named(own, Sharding if names_sharding(own) else Strategy), options, own)
            return
        if key == "model" and text_of(value) not in MODELS:
            lengths, steps = self._values_of("sequence"), self._values_of("step")
            given = [int(values[0]) if values and type(values[0]) is int else None for values in (lengths, steps)]
            found = own_model(text_of(value), *given)
            if found.times and "batch" in self.keys:
                raise ConfigError(
                    f"batch is varied, and the times of {value} are those of the one batch that was traced; leave "
                    "batch out, and vary model over a trace of each batch",
                    key="batch",
                )
        elif key == "gpu" and not self._values_of("iteration_s"):
            _check_gpu(text_of(value))
        if key in SETTINGS:
            _check_setting(key, value, SETTINGS[key].flag if key in self.base else key)
            return
        for toml in self.machines.values():
            changed_machine(toml, {key: value})

    def _unknown(self, key: str) -> ConfigError:
        names = (text_of(value) for value in self._values_of("machine"))
        fields = (name for machine in names for name in field_names(TomlFile.read(machine_path(machine))))
        known = list(dict.fromkeys((*SETTINGS, *fields)))
        near = get_close_matches(key, known, n=3, cutoff=0.5)
        near = near or [name for name in known if key and key in name][:3]
        remedy = f"did you mean {' or '.join(near)}?" if near else f"settings are {', '.join(SETTINGS)}"
        return ConfigError(
            f"{key} is no setting of coarse predict and no field of the machine's file; {remedy}", key=key
        )


def simulated(cell: Cell) -> Row:
    """Return the row of a cell: its iteration, or why it is impossible; deterministic."""
    try:
        asked = _question(cell.settings)
        scenarios = scenarios_of(asked, changed_machine(cell.toml, cell.changes))
        ranges = ranges_of(cell.toml, cell.intervals, cell.num_samples, 0, cell.changes, scenarios.factors)
        result = outcome_of(scenarios, cell.mode, ranges, record=False).result
    except CoarseError as error:
        return Row(values=cell.values, mode=cell.name, reason=" ".join(str(error).split()))
    return Row(
        values=cell.values,
        mode=cell.name,
        iteration_s=result.iteration_s,
        samples_per_s=asked.batch * asked.num_workers / result.iteration_s,
        exposed_s=result.exposed_s,
        compute_s=result.compute_s,
        samples_s=result.samples_s,
    )


def _question(settings: Mapping[str, Value]) -> Question:
    """Return the question of `coarse predict` that settings state; missing ones have its defaults."""
    stated = {key: value for key, value in settings.items() if key != "modes"}
    return Question(**{SETTINGS[key].name: _typed(SETTINGS[key], value) for key, value in stated.items()})


def _typed(option: Option, value: Value) -> Any:  # noqa: ANN401
    """Return a value as the question's field has it."""
    if option.kind is tuple:
        return () if value == _NONE else tuple(text_of(value).split("+"))
    return text_of(value) if option.kind is str else value


def _modes(settings: Mapping[str, Value]) -> Iterator[AnyMode]:
    stated = settings.get("modes")
    text = None if stated is None else text_of(stated).replace("+", ",")
    for name in () if text is None else map(str.strip, text.split(",")):
        if name in LUWU_MODES:
            raise ConfigError(
                f"--modes of a sweep are of {', '.join((*BUILT_IN, *PREDICTED))}, got {name!r}; ask coarse "
                "predict for it at each point",
                key="modes",
            )
    return any_modes_of(text, _options(settings))


def _options(settings: Mapping[str, Value]) -> tuple[str, ...]:
    texts: tuple[str, ...] = _typed(SETTINGS["options"], settings.get("options", _NONE))
    return texts


def _file_of(model: str) -> Path | None:
    """Return the file of a user's own model, as far as its name tells."""
    path = Path(model if model.endswith(SUFFIXES) else model.rpartition(":")[0] or model)
    path = path / "config.json" if path.is_dir() else path
    return path if model not in MODELS and path.is_file() else None


def _check_gpu(text: str) -> None:
    """Raise ConfigError if neither throughputs nor a peak are known of a GPU."""
    known = sorted({row.gpu for row in THROUGHPUTS})
    if not set(known) & set(re.findall(r"[a-z0-9]+", text.lower())):
        try:
            accelerator_named(text)
        except ConfigError as error:
            raise ConfigError(f"no throughput is known of gpu {text!r}, only of {', '.join(known)}; {error}",
                              key="gpu") from None  # fmt: skip


def _check_setting(key: str, value: Value, name: str) -> None:
    """Raise ConfigError if a value is wrong in itself; `name` is the option's in errors."""
    typed = _typed(SETTINGS[key], value)
    SETTINGS[key].check(typed, name)
    if key == "modes":
        list(_modes({"modes": value}))
    elif key == "straggler":
        list(map(slow_down, typed))
    elif key == "options":
        options_from(typed, "")
