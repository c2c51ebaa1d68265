"""The whole configuration: frozen, checked at birth, unknown keys refused with file and line."""

import math
import re
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from coarse.errors import ConfigError
from coarse.protocol.toml import KeyPath, TomlFile, Where, refuse_unknown_keys
from coarse.protocol.units import KIB, MIB

MODES = ("dense", "allreduce", "coarse")
POLICIES = ("auto", "paper", "devices")
COLLECTIVES = ("in_place", "ring")
LIVE_COLLECTIVE = "in_place"
"""How devices sum where nobody says: live, emulated and simulated."""
WORKER_COLLECTIVES = ("mpi", "ring")
ROUTING_POLICIES = ("measured", "fixed")
COHERENCES = ("hardware", "software", "checked")

Section = TypeVar("Section")


@dataclass(frozen=True, kw_only=True)
class MeasuredRouting:
    """Routing tables that the profiler derives from measurements (COARSE III-E)."""

    tie_tolerance: float = 0.1
    """Relative difference up to which two proxies count as equal; the local one is then taken."""
    min_partition_bytes: int = 256 * KIB
    max_partition_bytes: int = 8 * MIB
    profile_every_steps: int | None = None
    """Optimizer steps after which routes, and the two ways of dual synchronisation, are measured again."""

    def __post_init__(self) -> None:
        _require_number("tie_tolerance", self.tie_tolerance, "a number of at least 0", 0.0)
        _require_int("min_partition_bytes", self.min_partition_bytes, 1)
        _require_int("max_partition_bytes", self.max_partition_bytes, self.min_partition_bytes)
        if self.profile_every_steps is not None:
            _require_int("profile_every_steps", self.profile_every_steps, 1)


@dataclass(frozen=True, kw_only=True)
class FixedRouting:
    """One routing table that the user states; nothing is measured."""

    threshold_bytes: int
    """Tensors larger than this go to the bandwidth proxy."""
    partition_bytes: int
    latency_proxy: int | None = None
    """Device index; None is each client's local proxy."""
    bandwidth_proxy: int | None = None
    """Device index; None is each client's local proxy."""

    def __post_init__(self) -> None:
        _require_int("threshold_bytes", self.threshold_bytes, 0)
        _require_int("partition_bytes", self.partition_bytes, 1)
        if self.latency_proxy is not None:
            _require_int("latency_proxy", self.latency_proxy, 0)
        if self.bandwidth_proxy is not None:
            _require_int("bandwidth_proxy", self.bandwidth_proxy, 0)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What starts beside the workers."""

    devices: int | None = None
    """Memory devices of each node, for `torchrun`, which starts workers alone, and `coarse run` without --devices."""
    hosts: tuple[str, ...] | None = None
    """The nodes' host names in the order in which `torchrun` counts them, where there are several."""
    alone: bool = False
    """Whether each of several processes may train by itself, though a launcher started them together."""

    def __post_init__(self) -> None:
        if self.devices is not None:
            _require_int("devices", self.devices, 1)
        if self.hosts is not None:
            object.__setattr__(self, "hosts", _host_names(self.hosts))
        if not isinstance(self.alone, bool):
            raise _wrong("alone", "true or false", self.alone)


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """Memory that all nodes have mapped, by which memory devices of different nodes send instead of by MPI."""

    path: str
    """A devdax device, or a file that exists, under the same path on all nodes."""
    coherence: str = "software"
    """Whether the hardware keeps it coherent between hosts, or flushes do; "checked" finds flushes that are missing."""
    offset_bytes: int = 0
    """Where in the file or device the pool begins."""
    ring_bytes: int = MIB
    """Of what one device has under way to another."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise _wrong("path", "the path of a file or devdax device", self.path)
        _require_choice("coherence", self.coherence, COHERENCES)
        _require_int("offset_bytes", self.offset_bytes, 0)
        _require_int("ring_bytes", self.ring_bytes, 4 * KIB)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a user may set; the same on every rank."""

    mode: str = "coarse"
    """Who sums what, where and when: one of MODES, or a Strategy of one's own, MODULE:CLASS or FILE.py:CLASS."""
    strategy: Mapping[str, object] = field(default_factory=dict)
    """Options of a strategy of one's own: fields of its class."""
    policy: str = "auto"
    """How the mode coarse decides which gradients the devices add, and which the workers (COARSE III-F)."""
    partition: str | None = None
    """Path of a partition table (ends in .toml), or text such as "2:2"; None is half and half."""
    device_capacity_bytes: int | None = None
    """Bytes that one memory device may hold; None lets it grow while the machine has memory."""
    collective: str = LIVE_COLLECTIVE
    """How the proxies of one node synchronise; between nodes it is always a ring."""
    worker_collective: str = "mpi"
    """How the workers sum what they sum themselves: by MPI's all-reduce, or by the ring of COARSE III-F."""
    lend_from_bytes: int = 16 * MIB
    """From this size on devices read and write a tensor in ordinary memory where it lies; 0: all are copied."""
    num_sync_groups: int = 2
    routing: MeasuredRouting | FixedRouting = field(default_factory=MeasuredRouting)
    launch: Launch = field(default_factory=Launch)
    pool: PoolSettings | None = None
    """None is MPI between nodes."""
    decision: str | None = None
    """Path of a file that fixes measured facts and decided rounds; where it is not there, the run writes it."""
    features: Sequence[str] = ()
    """Further features of memory devices, as MODULE:SPEC; see docs/features.md."""
    bucket_bytes: int = 25 * MIB
    """Neighbouring gradients of an optimizer are fused up to this (an eighth of the model if that is less)."""
    stall_timeout_s: float = 60.0
    startup_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        require_mode(self.mode)
        if not isinstance(self.strategy, Mapping) or not all(isinstance(name, str) for name in self.strategy):
            raise _wrong("strategy", "options by name, in a file the table [strategy]", self.strategy)
        _require_choice("policy", self.policy, POLICIES)
        _require_choice("collective", self.collective, COLLECTIVES)
        _require_choice("worker_collective", self.worker_collective, WORKER_COLLECTIVES)
        _require_int("lend_from_bytes", self.lend_from_bytes, 0)
        for key in ("partition", "decision"):
            _require_text_or_none(key, getattr(self, key))
        if self.device_capacity_bytes is not None:
            _require_int("device_capacity_bytes", self.device_capacity_bytes, 1)
        if not isinstance(self.features, list | tuple) or not all(isinstance(name, str) for name in self.features):
            raise _wrong("features", 'a list of texts such as ["mine.counting:SPEC"]', self.features)
        object.__setattr__(self, "features", tuple(self.features))
        for key in ("num_sync_groups", "bucket_bytes"):
            _require_int(key, getattr(self, key), 1)
        for key in ("stall_timeout_s", "startup_timeout_s"):
            _require_number(key, getattr(self, key), "a number of seconds above 0", math.ulp(0.0))
        if not isinstance(self.routing, MeasuredRouting | FixedRouting):
            raise _wrong("routing", "MeasuredRouting(...) or FixedRouting(...)", self.routing)
        if not isinstance(self.launch, Launch):
            raise _wrong("launch", "Launch(...), in a file the table [launch]", self.launch)
        if not isinstance(self.pool, PoolSettings | None):
            raise _wrong("pool", "PoolSettings(...), in a file the table [pool]", self.pool)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], source: str = "argument") -> "Config":
        """The configuration that `mapping` states; `source` names it in errors."""
        return _config_from(mapping, lambda path: source)

    def to_mapping(self) -> dict[str, object]:
        """What `from_mapping` reads back as an equal configuration; plain values only."""
        policy = "fixed" if isinstance(self.routing, FixedRouting) else "measured"
        return {**asdict(self), "routing": {"policy": policy, **asdict(self.routing)}}

    @classmethod
    def from_toml(cls, path: str | Path) -> "Config":
        """The configuration of a TOML file; files that it names are relative to its folder."""
        toml, folder = TomlFile.read(path), Path(path).parent
        config = _config_from(toml.values, toml.where)
        if config.partition is not None and config.partition.endswith(".toml"):
            config = replace(config, partition=str(folder / config.partition))
        if config.decision is not None:
            config = replace(config, decision=str(folder / config.decision))
        module, _, name = config.mode.rpartition(":")
        return replace(config, mode=f"{folder / module}:{name}") if module.endswith(".py") else config


def load_config(
    source: Config | Mapping[str, object] | str | Path | None, environ: Mapping[str, str]
) -> Config:
    """The configuration in force: the argument, else the file that COARSE_CONFIG names, else the
    defaults; COARSE_PARTITION, COARSE_MODE, COARSE_POLICY and COARSE_STRATEGY then override what it says."""
    if remark := skipped_file(source, environ):
        warnings.warn(remark, stacklevel=2)
    config = _config_given(source if source is not None else environ.get("COARSE_CONFIG") or Config())
    for key in ("partition", "mode", "policy"):
        if (variable := f"COARSE_{key.upper()}") in environ:
            config = _overridden(config, key, environ[variable], variable)
    if "COARSE_STRATEGY" in environ:
        options = _options_in(environ["COARSE_STRATEGY"])
        config = replace(config, strategy={**config.strategy, **options})
    return config


def _options_in(text: str) -> Mapping[str, object]:
    """Options as a TOML table in one line, such as "every = 8, lr = 0.7"."""
    try:
        options: Mapping[str, object] = tomllib.loads(f"options = {{{text}}}")["options"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"COARSE_STRATEGY must be options such as every = 8, lr = 0.7, got {text!r} ({error}); correct it",
            key="strategy",
        ) from None
    return options


def skipped_file(source: object, environ: Mapping[str, str]) -> str:
    """Return the remark that the file of COARSE_CONFIG is not read since there is a `source`; "" where it is."""
    named_file = environ.get("COARSE_CONFIG")
    if source is None or not named_file:
        return ""
    return (
        f"COARSE_CONFIG={named_file} is skipped, since init() was given a configuration; call init() without one to "
        "use the file"
    )


def _config_given(source: Config | Mapping[str, object] | str | Path) -> Config:
    if isinstance(source, Config):
        return source
    if isinstance(source, str | Path):
        return Config.from_toml(source)
    if isinstance(source, Mapping):
        return Config.from_mapping(source)
    raise ConfigError(
        "init() wants a Config, a mapping, the path of a TOML file or None, "
        f"got {type(source).__name__}"
    )


def _overridden(config: Config, key: str, text: str, variable: str) -> Config:
    try:
        return replace(config, **{key: text})  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(f"{variable}: {error}", key=key) from None


def _config_from(mapping: Mapping[str, object], where: Where) -> Config:
    values = dict(mapping)
    routing = values.get("routing")
    if isinstance(routing, Mapping):
        values["routing"] = _routing_from(routing, where)
    launch = values.get("launch")
    if isinstance(launch, Mapping):
        values["launch"] = _section_from(Launch, launch, ("launch",), where)
    pool = values.get("pool")
    if isinstance(pool, Mapping):
        values["pool"] = _section_from(PoolSettings, pool, ("pool",), where)
    return _section_from(Config, values, (), where)


def _routing_from(mapping: Mapping[str, object], where: Where) -> MeasuredRouting | FixedRouting:
    values = dict(mapping)
    policy = values.pop("policy", "measured")
    try:
        _require_choice("policy", policy, ROUTING_POLICIES)
    except ConfigError as error:
        raise ConfigError(f"{where(('routing', 'policy'))}: {error}", key="policy") from None
    if policy == "measured":
        stated = sorted(set(values) & {item.name for item in fields(FixedRouting)})
        if stated:
            raise ConfigError(
                f"{where(('routing', stated[0]))}: {stated[0]!r} belongs to fixed routing, but the "
                'routing is measured; add policy = "fixed"',
                key=stated[0],
            )
        return _section_from(MeasuredRouting, values, ("routing",), where)
    return _section_from(FixedRouting, values, ("routing",), where)


def _section_from(
    kind: Callable[..., Section], values: Mapping[str, object], path: KeyPath, where: Where
) -> Section:
    known = fields(kind)  # type: ignore[arg-type]
    refuse_unknown_keys(values, (item.name for item in known), path, where)
    for item in known:
        absent = item.name not in values
        if absent and item.default is MISSING and item.default_factory is MISSING:
            dotted = ".".join(str(part) for part in (*path, item.name))
            raise ConfigError(f"{where(path)}: {dotted!r} is missing; set it", key=item.name)
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{where((*path, error.key or ''))}: {error}", key=error.key) from None


def _wrong(key: str, wanted: str, value: object) -> ConfigError:
    return ConfigError(f"{key} must be {wanted}, got {value!r}", key=key)


def _host_names(value: object) -> tuple[str, ...]:
    """Different names, of which a file has a list; to mpirun a comma or a colon would end one."""
    names = tuple(value) if isinstance(value, list | tuple) else ()
    are_names = all(isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name) for name in names)
    if not names or not are_names or len(set(names)) < len(names):
        raise _wrong("hosts", "a list of different host names, of letters, digits, '.', '-' and '_'", value)
    return names


def require_mode(mode: object) -> None:
    """One of MODES, or the form of a user's class; whether there is such a class is found out when a job starts."""
    if mode in MODES:
        return
    module, _, name = mode.rpartition(":") if isinstance(mode, str) else ("", "", "")
    if not (module and name.isidentifier()):
        near = get_close_matches(str(mode), MODES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"mode must be {' or '.join(map(repr, MODES))}, or a strategy as MODULE:CLASS or FILE.py:CLASS, got "
            f"{mode!r}{hint}",
            key="mode",
        )


def _require_choice(key: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _wrong(key, " or ".join(repr(choice) for choice in choices), value)


def _require_text_or_none(key: str, value: object) -> None:
    if value is not None and not (isinstance(value, str) and value):
        raise _wrong(key, "text that is not empty", value)


def _require_int(key: str, value: object, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise _wrong(key, f"a whole number of at least {at_least}", value)


def _require_number(key: str, value: object, wanted: str, at_least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and at_least <= value < math.inf):  # type: ignore[operator]
        raise _wrong(key, wanted, value)
