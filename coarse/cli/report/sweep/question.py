"""What a sweep asks: settings of `coarse predict` and fields of machines, checked one by one, and its cells."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from coarse.cli.own_model.source import MAX_SEQUENCE, own_model
from coarse.cli.own_model.traces.file import SUFFIXES
from coarse.cli.report.prediction import (
    MAX_WORKERS,
    Question,
    Scenarios,
    one_of,
    predict,
    require_policy,
    result_of,
    slow_down,
)
from coarse.cli.report.ranges import Ranges, ranges_of
from coarse.cli.report.run import Result
from coarse.cli.report.sharded_prediction import AnyMode, any_modes_of, sharded_outcome, sharded_samples_s
from coarse.cli.report.sweep.points import Point, Value, text_of
from coarse.cli.report.sweep.rows import Row
from coarse.errors import CoarseError, ConfigError
from coarse.hardware.accelerator import Optimizer
from coarse.hardware.compute import THROUGHPUTS
from coarse.hardware.machine_field import changed_machine, field_names, has_times, is_machine_field
from coarse.hardware.models import MODELS, Precision
from coarse.hardware.presets import accelerator_named, machine_path
from coarse.hardware.quantities import LARGEST, SMALLEST
from coarse.luwu.simulation.capacity import MODES as LUWU_MODES
from coarse.protocol.config import COLLECTIVES
from coarse.protocol.toml import TomlFile
from coarse.strategy.named import BUILT_IN, mode_name, options_from
from coarse.strategy.sharding import PREDICTED, Sharding, name_of

SETTINGS: dict[str, type] = {
    "machine": str, "model": str, "sequence": int, "step": int, "gpu": str, "peak_share": float, "iteration_s": float,
    "batch": int, "precision": str, "workers": int, "devices": int, "nodes": int, "modes": str, "policy": str,
    "options": str,
    "collective": str, "hold_back": bool, "ring_slow_down": float, "straggler": str, "jitter": float, "seed": int,
    "optimizer": str, "nvlink": bool, "iterations": int, "profile_every": int,
}  # fmt: skip
"""Of `coarse predict`, by the names of its options."""
WHOLE = (*(key for key, kind in SETTINGS.items() if kind is int), "num_nodes", "disks.num_optimizer_disks")
"""Keys whose values are whole numbers."""
_LIMITS = {"sequence": (1, MAX_SEQUENCE), "peak_share": (SMALLEST, 1.0), "iteration_s": (SMALLEST, LARGEST)}
"""The least and the most of settings that a question checks with its model alone."""
_FORMAT = 5
"""Of the record of a question."""
_KIND_NAMES = {int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One mode at one point."""

    settings: Mapping[str, Value]
    """All of them, varied or not."""
    changes: Mapping[str, Value]
    """Fields of the machine."""
    toml: TomlFile
    """The machine's file."""
    mode: AnyMode
    values: tuple[str, ...]
    """Of the varied keys, as they stand in a row."""
    intervals: tuple[str, ...] = ()
    num_samples: int = 0
    """As of the sweep."""

    @property
    def name(self) -> str:
        """The mode as rows have it."""
        return name_of(self.mode) if isinstance(self.mode, Sharding) else mode_name(self.mode)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Points in their order, with the settings that all of them share; checked when it is made."""

    base: Mapping[str, Value]
    """Settings that no point states; `machine` and `model` at least, unless points do."""
    points: tuple[Point, ...]
    intervals: tuple[str, ...] = ()
    """Of inputs, as options state them."""
    num_samples: int = 0
    """Other inputs at each point, beside the two ends; 0: none."""
    machines: Mapping[str, TomlFile] = field(init=False)
    """By the names that occur."""

    def __post_init__(self) -> None:
        keys = self.keys
        for key in keys:
            if key not in SETTINGS and not is_machine_field(key):
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
        """The varied keys, in order."""
        return tuple(self.points[0])

    def cells(self) -> Iterator[Cell]:
        """Every mode of every point, in order."""
        for point in self.points:
            settings = {**self.base, **{key: value for key, value in point.items() if key in SETTINGS}}
            for mode in _modes(settings):
                changes = {key: value for key, value in point.items() if key not in SETTINGS}
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
        """Plain values that are equal for equal questions alone."""
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
        """What a reader should know of the varied keys."""
        for key in self.keys:
            if key not in SETTINGS and any(has_times(toml, key) for toml in self.machines.values()):
                yield (
                    f"{key}: the machine's file also has a table of measured times for this wire, so a transfer alone "
                    "gets no faster than that table by a higher rate."
                )

    def _values_of(self, key: str) -> tuple[Value, ...]:
        """Each once; the base's where no point states one."""
        if key in self.base:
            return (self.base[key],)
        stated = {text_of(point[key]): point[key] for point in self.points if key in point}
        return tuple(stated.values())

    def _check(self, key: str, value: Value) -> None:
        """ConfigError where a value is wrong by itself, whatever the other settings are."""
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
            _check_setting(key, value)
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
    """The row of a cell: its iteration, or why it is impossible; deterministic."""
    try:
        asked = _question(cell.settings)
        scenarios = asked.scenarios(changed_machine(cell.toml, cell.changes))
        ranges = ranges_of(cell.toml, cell.intervals, cell.num_samples, 0, cell.changes, scenarios.factors)
        if isinstance(cell.mode, Sharding):
            result, samples_s = _sharded(scenarios, cell.mode, ranges)
        else:
            result, samples_s = _data_parallel(scenarios, cell.mode, ranges)
    except CoarseError as error:
        return Row(values=cell.values, mode=cell.name, reason=" ".join(str(error).split()))
    return Row(
        values=cell.values,
        mode=cell.name,
        iteration_s=result.iteration_s,
        samples_per_s=asked.batch * asked.workers / result.iteration_s,
        exposed_s=result.exposed_s,
        compute_s=result.compute_s,
        samples_s=samples_s,
    )


def _data_parallel(scenarios: Scenarios, mode: str, ranges: Ranges | None) -> tuple[Result, tuple[float, ...]]:
    scenario = scenarios.of(mode)
    scenario.gpu_memory(Optimizer(scenarios.question.optimizer))
    job, report = predict(scenario, lambda _: None, lambda _: None, record=False)
    return result_of(scenario, job, report), ranges.iterations_s(scenarios, mode, job) if ranges else ()


def _sharded(scenarios: Scenarios, mode: Sharding, ranges: Ranges | None) -> tuple[Result, tuple[float, ...]]:
    outcome = sharded_outcome(scenarios, mode)
    return outcome.result, sharded_samples_s(ranges, scenarios, mode) if ranges else ()


def _question(settings: Mapping[str, Value]) -> Question:
    """The question of `coarse predict` that settings state; what is missing is as there."""
    named = {"iterations": "num_iterations"}
    plain: dict[str, Any] = {
        named.get(key, key): text_of(value) if SETTINGS[key] is str else value
        for key, value in settings.items()
        if key not in ("modes", "straggler", "options")
    }
    return Question(
        **plain,
        slow_downs=tuple(_slow_downs(text_of(settings.get("straggler", "none")))),
        options=_options(settings),
    )


def _slow_downs(text: str) -> Iterator[tuple[int, float]]:
    if text != "none":
        yield from map(slow_down, text.split("+"))


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
    text = text_of(settings.get("options", "none"))
    return () if text == "none" else tuple(text.split("+"))


def _file_of(model: str) -> Path | None:
    """The file that a model of one's own is read from, as far as its name says."""
    path = Path(model if model.endswith(SUFFIXES) else model.rpartition(":")[0] or model)
    path = path / "config.json" if path.is_dir() else path
    return path if model not in MODELS and path.is_file() else None


def _check_gpu(text: str) -> None:
    """ConfigError where neither throughputs nor a peak are known of a GPU."""
    known = sorted({row.gpu for row in THROUGHPUTS})
    if not set(known) & set(re.findall(r"[a-z0-9]+", text.lower())):
        try:
            accelerator_named(text)
        except ConfigError as error:
            raise ConfigError(f"no throughput is known of gpu {text!r}, only of {', '.join(known)}; {error}",
                              key="gpu") from None  # fmt: skip


def _check_setting(key: str, value: Value) -> None:
    kind, text = SETTINGS[key], text_of(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is not str and type(value) is not kind and not (kind is float and is_number):
        raise ConfigError(f"{key} must be {_KIND_NAMES[kind]}, got {text}; correct it", key=key)
    if key == "modes":
        list(_modes({"modes": value}))
    elif key in _LIMITS:
        least, most = _LIMITS[key]
        if not least <= float(value) <= most:
            raise ConfigError(f"{key} must lie in {least:g}..{most:g}, got {text}; correct it", key=key)
    elif key == "collective":
        if text not in COLLECTIVES:
            raise ConfigError(f"collective must be one of {', '.join(COLLECTIVES)}, got {text!r}; correct it", key=key)
    elif key == "straggler":
        most = max((worker for worker, _ in _slow_downs(text)), default=0)
        _question({"machine": "", "model": "", "workers": min(max(1, most + 1), MAX_WORKERS), key: value})
    elif key in ("policy", "precision", "optimizer"):
        if key == "policy":
            require_policy(text)
        else:
            one_of(key, text, Precision if key == "precision" else Optimizer)
    elif key == "options":
        options_from(() if text == "none" else text.split("+"), "")
    elif key not in ("machine", "model", "gpu", "step"):
        workers = {"workers": min(max(1, int(value)), MAX_WORKERS)} if key == "nodes" else {}
        _question({"machine": "", "model": "", **workers, key: value})
