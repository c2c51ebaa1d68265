"""Whole configuration: frozen, checked at birth, with unknown keys refused by file and line."""

import math
import re
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from coarse.errors import ConfigError
from coarse.protocol.fields import Says, check, from_mapping, options_of
from coarse.protocol.toml import TomlFile, Where
from coarse.protocol.units import KIB, MIB

MODES = ("dense", "allreduce", "coarse")
POLICIES = ("auto", "paper", "devices")
COLLECTIVES = ("in_place", "ring")
LIVE_COLLECTIVE = "in_place"
"""Way in which devices sum by default: live, emulated and simulated."""
WORKER_COLLECTIVES = ("mpi", "ring")
FOLDER = "folder:"
BY_WALL = "wall"
"""Choice of the passing wall time as compute time."""
ROUTING_POLICIES = ("measured", "fixed")
COHERENCES = ("hardware", "software", "checked")
_HOSTS = "a list of different host names, of letters, digits, '.', '-' and '_'"
_SECONDS = "a number of seconds above 0"


@dataclass(frozen=True, kw_only=True)
class MeasuredRouting:
    """Routing tables that the profiler derives from measurements (COARSE III-E)."""

    tie_tolerance: Annotated[float, Says(
        "Devices whose times differ relatively by no more than this count as equal; the local one is taken.",
        low=0,
    )] = 0.1
    min_partition_bytes: Annotated[int, Says(
        "The smallest partition size, and the smallest copy that is measured.",
        low=1,
    )] = 256 * KIB
    max_partition_bytes: Annotated[int, Says(
        "The largest partition size, and the largest copy that is measured.",
    )] = 8 * MIB
    profile_every_steps: Annotated[int | None, Says(
        'After so many steps of a `DistributedOptimizer` in the mode `"coarse"`, all workers measure routes and the '
        "two ways of dual synchronisation again, and decide again. Without it they do so at the start alone.",
        low=1,
    )] = None

    def __post_init__(self) -> None:
        check(self)
        if self.max_partition_bytes < self.min_partition_bytes:
            raise ConfigError(
                f"max_partition_bytes must be a whole number of at least {self.min_partition_bytes}, which is "
                f"min_partition_bytes, got {self.max_partition_bytes}",
                key="max_partition_bytes",
            )


@dataclass(frozen=True, kw_only=True)
class FixedRouting:
    """One routing table that the user states; nothing is measured."""

    threshold_bytes: Annotated[int, Says(
        "Tensors larger than this go to the bandwidth proxy.",
        low=0,
    )]
    partition_bytes: Annotated[int, Says(
        "The partition size.",
        low=1,
    )]
    latency_proxy: Annotated[int | None, Says(
        "Device index; without it, each worker's local proxy.",
        low=0,
    )] = None
    bandwidth_proxy: Annotated[int | None, Says(
        "Device index; without it, each worker's local proxy.",
        low=0,
    )] = None

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Settings of the processes that start beside the workers."""

    devices: Annotated[int | None, Says(
        "Memory devices of each node, where no option says how many: for [`torchrun`](cluster.md#torchrun), which "
        "starts workers alone, and for `coarse run` without `--devices`.",
        low=1,
    )] = None
    hosts: Annotated[tuple[str, ...] | None, Says(
        "The nodes' host names as a list, in the order in which [`torchrun`](cluster.md#torchrun) counts its nodes, "
        "where there are several.",
        wanted=_HOSTS,
    )] = None
    alone: Annotated[bool, Says(
        "Whether each of several processes may train by itself. Without it `init()` refuses, with ConfigError, where "
        "the innermost launcher (torchrun, mpirun, srun) says that it started several processes and MPI has joined "
        "none of them.",
    )] = False

    def __post_init__(self) -> None:
        check(self)
        if self.hosts is not None:
            _require_host_names(self.hosts)


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """Memory that all nodes have mapped, by which memory devices of different nodes send instead of by MPI."""

    path: Annotated[str, Says(
        "A devdax device, or a file that exists, under the same path on all nodes.",
        wanted="the path of a file or devdax device",
    )]
    coherence: Annotated[str, Says(
        '`"hardware"`: it is coherent between hosts; `"software"`: flushes keep it so; `"checked"`: the same, and a '
        "checker finds flushes that are missing.",
        choices=COHERENCES,
    )] = "software"
    offset_bytes: Annotated[int, Says(
        "Where in the file or device the pool begins.",
        low=0,
    )] = 0
    ring_bytes: Annotated[int, Says(
        "What one device has under way to another.",
        low=4 * KIB,
    )] = MIB

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class EmulateSettings:
    """A machine that is not here, whose links, memory devices and network take the time that its file says."""

    machine: Annotated[str, Says(
        "A preset of `coarse predict`, or the path of a machine file.",
    )]
    nodes: Annotated[int, Says(
        "Nodes of that machine over which workers and memory devices are spread; all ranks run on this host.",
        low=1,
    )] = 1
    places: Annotated[str | None, Says(
        "Endpoints of the machine that play the workers, and after a colon those that play the memory devices, such as "
        "`gpu0,gpu4:memory0,memory2`. Without it, those that `coarse predict` takes.",
        wanted="endpoints such as gpu0,gpu4:memory0,memory2",
    )] = None
    compute_scale: Annotated[float | None, Says(
        "How many times faster its accelerator computes than one core here. Without it: measured here, against 0.3 of "
        "the accelerator's float32 peak.",
        low=math.ulp(0.0),
        wanted="a number above 0: how many times faster the accelerator computes than one core here",
    )] = None
    touches: Annotated[str, Says(
        '`"tensors"`: parameters and states that live in device memory are loaded and stored over the coherent path, '
        'once by each operation that uses them. `"off"`: they cost nothing.',
        choices=("tensors", "off"),
    )] = "tensors"
    compute: Annotated[str | None, Says(
        "A file of compute times, which `save_compute` has written: they count instead of CPU time. So two runs are "
        'equal, and modes are compared by the same compute. `"wall"`: time that passes counts, for scripts whose '
        "compute is elsewhere, as in a process of their own.",
    )] = None
    save_compute: Annotated[str | None, Says(
        "A file for the medians of this run's compute times.",
    )] = None
    script_clock: Annotated[str, Says(
        '`"emulated"`: the main thread\'s `time.perf_counter` and `time.time` show emulated time while the run lasts, '
        'so that what a script logs of its steps is of the machine. `"wall"`: they show what passes here.',
        choices=("wall", "emulated"),
    )] = "wall"
    out: Annotated[str, Says(
        "The folder for what comes out.",
    )] = "results/emulated"

    @property
    def compute_file(self) -> str | None:
        """File of compute times that count; None where they are measured."""
        return None if self.compute == BY_WALL else self.compute

    def __post_init__(self) -> None:
        check(self)
        if self.compute_file is not None and self.save_compute is not None:
            raise ConfigError(
                f"save_compute writes what is measured, and compute = {self.compute!r} measures nothing; give one of "
                "the two",
                key="save_compute",
            )


POOL = "pool"
"""Name of the place in the pool, for states that outlive a node."""
REPEATABLE_ROUTING = 'policy = "fixed", threshold_bytes = 65536, partition_bytes = 4194304'
"""Routing of a job that is started again, in the form of COARSE_ROUTING: rings begin at the same places each time."""


@dataclass(frozen=True, kw_only=True)
class FaultSettings:
    """Memory that survives the job's processes."""

    memory: Annotated[str | None, Says(
        "`folder:PATH`: a folder of your own that keeps what `ct.Resumable` commits, for plain `mpirun`, `torchrun` "
        "and schedulers: on a tmpfs, a file system over CXL memory, or a disk. Without it "
        "`coarse run --restarts` keeps it in memory. See [faults.md](faults.md).",
        wanted="folder:PATH, such as folder:/dev/shm/my-run",
    )] = None
    place: Annotated[str | None, Says(
        "`pool`: with `coarse run --cluster --restarts`, states of workers are in a pool of CXL memory that all nodes "
        "share (emulated), so that they outlive a node; without it they are lost with their node.",
        choices=(POOL,),
    )] = None

    def __post_init__(self) -> None:
        check(self)
        if self.memory is not None and not self.memory.removeprefix(FOLDER).strip("/"):
            raise ConfigError(f"memory must be {FOLDER}PATH, got {self.memory!r}; name a folder", key="memory")
        if self.memory is not None and not self.memory.startswith(FOLDER):
            raise ConfigError(
                f"memory must be {FOLDER}PATH, such as {FOLDER}/dev/shm/my-run, got {self.memory!r}", key="memory"
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a user may set, equal on every rank."""

    mode: Annotated[str, Says(
        '`"coarse"`: memory devices synchronise gradients, and the workers some of them if that is faster. `"dense"`: '
        "one memory device does all. `\"allreduce\"`: the workers' MPI all-reduce does, for `DistributedOptimizer`. "
        "See [modes.md](modes.md). Or a strategy of your own, as `MODULE:CLASS` or `FILE.py:CLASS`: see "
        "[strategies.md](strategies.md).",
    )] = "coarse"
    strategy: Annotated[Mapping[str, object], Says(
        "Options of a strategy of your own: fields of its class, in a file the table `[strategy]`. See "
        "[strategies.md](strategies.md).",
        wanted="options by name, in a file the table [strategy]",
    )] = field(default_factory=dict)
    sharding: Annotated[str | None, Says(
        "The mode of `coarse.torch.fully_shard` where a script states none, such as `\"fcdp\"`; `\"fsdp\"` by default. "
        "See [sharded.md](sharded.md).",
    )] = None
    policy: Annotated[str, Says(
        'How the mode `"coarse"` decides which gradients of a `DistributedOptimizer` the memory devices add and which '
        'the workers (dual synchronisation): `"auto"` by simulating the iteration, `"paper"` by the formula of COARSE '
        'III-F, `"devices"` all by the devices. Other modes have nothing to decide. See '
        "[modes.md](modes.md#dual-synchronisation).",
        choices=POLICIES,
    )] = "auto"
    partition: Annotated[str | None, Says(
        'Which rank is a worker and which a memory device: `"W:D"`, one role per rank '
        '(`"worker,worker,memory_device"`), or the path of a table, which ends in `.toml`. In a configuration file '
        "the path is relative to that file. Without it each node is divided half and half, workers first; an odd rank "
        "is a worker, and a lone rank has both roles.",
    )] = None
    device_capacity_bytes: Annotated[int | None, Says(
        "Bytes that one memory device may hold. They are asked for at start: CapacityError if the machine does not "
        "have them for all its devices. Without it a device grows while the machine has memory.",
        low=1,
    )] = None
    collective: Annotated[str, Says(
        'How the devices of one node synchronise. `"in_place"`: one device per shard adds the contributions where '
        'they lie. `"ring"`: the devices form a ring over MPI, as between nodes, where it is always a ring. In the '
        'mode `"dense"` it must be `"in_place"`.',
        choices=COLLECTIVES,
    )] = LIVE_COLLECTIVE
    worker_collective: Annotated[str, Says(
        'How the workers sum what they sum themselves (mode `"allreduce"`, their share under dual synchronisation, '
        "all-reduces of torch.distributed's groups and of process sets). `\"mpi\"`: MPI's all-reduce. `\"ring\"`: the "
        "ring of COARSE III-F, the same state machine that emulation and simulation carry out; its sums have the same "
        "bits in every run. It has no effect where the workers sum nothing.",
        choices=WORKER_COLLECTIVES,
    )] = "mpi"
    lend_from_bytes: Annotated[int, Says(
        "From this size on, tensors in ordinary memory are not copied to devices and back: devices read and write "
        "them where they lie. `0`: all are copied. See [modes.md](modes.md#tensors-in-ordinary-memory).",
        low=0,
    )] = 16 * MIB
    num_sync_groups: Annotated[int, Says(
        "Shards are dealt to so many groups; the rings of adjacent groups run in opposite directions. It has no "
        "effect where nothing runs in rings.",
        low=1,
    )] = 2
    routing: Annotated[MeasuredRouting | FixedRouting, Says(
        "How each worker chooses the device for a tensor: see below.",
        wanted="MeasuredRouting(...) or FixedRouting(...)",
    )] = field(default_factory=MeasuredRouting)
    launch: Annotated[Launch, Says(
        "What starts beside the workers: see below.",
    )] = field(default_factory=Launch)
    pool: Annotated[PoolSettings | None, Says(
        "Memory that all nodes have mapped, by which memory devices send to one another instead of by MPI: see below.",
    )] = None
    emulate: Annotated[EmulateSettings | None, Says(
        "A machine on whose links and memory devices the job is emulated: see below.",
    )] = None
    faults: Annotated[FaultSettings, Says(
        "What survives the job's processes: see below.",
    )] = field(default_factory=FaultSettings)
    decision: Annotated[str | None, Says(
        "A file that fixes what is measured and decided: each worker's facts, and who sums which bucket of each "
        "optimizer. Where it is not there, the run writes it at its end; where it is, nothing is measured, and the "
        "rounds are its from the first step. So two runs by one file have equal bits, with `worker_collective = "
        '"ring"` where workers sum a part. A file of another cluster or model is a ConfigError.',
    )] = None
    features: Annotated[Sequence[str], Says(
        "Features of your own that memory devices load when their first record comes, as `MODULE:SPEC`: see "
        "[features.md](features.md).",
        wanted='a list of texts such as ["mine.counting:SPEC"]',
    )] = ()
    bucket_bytes: Annotated[int, Says(
        "`DistributedOptimizer` fuses neighbouring gradients into buckets of up to this, and of up to an eighth of "
        "the model (but 4 MiB at least) if that is less.",
        low=1,
    )] = 25 * MIB
    stall_timeout_s: Annotated[float, Says(
        "How long a `wait` may last before StallError names the ranks that are missing.",
        low=math.ulp(0.0), wanted=_SECONDS,
    )] = 60.0
    startup_timeout_s: Annotated[float, Says(
        "How long start-up may wait for the node's other ranks to call `init()`, and then for their memory and "
        "routing tables; StallError names the ranks that have not come. Raise it where a worker loads data for "
        "minutes before `init()`. Light device ranks wait as long as it takes.",
        low=math.ulp(0.0), wanted=_SECONDS,
    )] = 60.0

    def __post_init__(self) -> None:
        require_mode(self.mode)
        check(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], source: str = "argument") -> "Config":
        """Return the configuration that `mapping` states; `source` names it in errors."""
        return _config_from(mapping, lambda path: source)

    def to_mapping(self) -> dict[str, object]:
        """Return plain values alone, which `from_mapping` reads back as an equal configuration."""
        policy = "fixed" if isinstance(self.routing, FixedRouting) else "measured"
        return {**asdict(self), "routing": {"policy": policy, **asdict(self.routing)}}

    @classmethod
    def from_toml(cls, path: str | Path) -> "Config":
        """Return the configuration of a TOML file; files that it names are relative to its folder."""
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
    """Return the configuration in force.

    It is the argument, else the file that COARSE_CONFIG names, else the defaults. Then COARSE_PARTITION, COARSE_MODE,
    COARSE_POLICY, COARSE_SHARDING, COARSE_ROUTING, COARSE_STRATEGY and COARSE_EMULATE override it.
    """
    if remark := skipped_file(source, environ):
        warnings.warn(remark, stacklevel=2)
    config = _config_given(source if source is not None else environ.get("COARSE_CONFIG") or Config())
    for key in ("partition", "mode", "policy", "sharding"):
        if (variable := f"COARSE_{key.upper()}") in environ:
            config = _overridden(config, key, environ[variable], variable)
    if "COARSE_ROUTING" in environ:
        stated = _options_in("COARSE_ROUTING", environ, 'policy = "fixed", threshold_bytes = 65536')
        config = replace(config, routing=_routing_from(stated, lambda _: "COARSE_ROUTING"))
    if "COARSE_STRATEGY" in environ:
        options = _options_in("COARSE_STRATEGY", environ, "every = 8, lr = 0.7")
        config = replace(config, strategy={**config.strategy, **options})
    if "COARSE_EMULATE" in environ:
        before = {} if config.emulate is None else asdict(config.emulate)
        emulated = before | dict(_options_in("COARSE_EMULATE", environ, 'machine = "cxl-cz120", nodes = 1'))
        config = replace(config, emulate=from_mapping(EmulateSettings, emulated, lambda _: "COARSE_EMULATE"))
    return config


def _options_in(variable: str, environ: Mapping[str, str], example: str) -> Mapping[str, object]:
    """Return the options of a variable that holds a TOML table in one line."""
    text = environ[variable]
    try:
        options: Mapping[str, object] = tomllib.loads(f"options = {{{text}}}")["options"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{variable} must be options such as {example}, got {text!r} ({error}); correct it",
            key=variable.removeprefix("COARSE_").lower(),
        ) from None
    return options


def skipped_file(source: object, environ: Mapping[str, str]) -> str:
    """Return the remark that COARSE_CONFIG's file is not read because of a `source`; "" where it is read."""
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
    return from_mapping(Config, values, where)


def _routing_from(mapping: Mapping[str, object], where: Where) -> MeasuredRouting | FixedRouting:
    values = dict(mapping)
    policy = values.pop("policy", "measured")
    if policy not in ROUTING_POLICIES:
        raise ConfigError(
            f"{where(('routing', 'policy'))}: policy must be one of {', '.join(ROUTING_POLICIES)}, got {policy!r}",
            key="policy",
        )
    if policy == "measured":
        stated = sorted(set(values) & options_of(FixedRouting).keys())
        if stated:
            raise ConfigError(
                f"{where(('routing', stated[0]))}: {stated[0]!r} belongs to fixed routing, but the "
                'routing is measured; add policy = "fixed"',
                key=stated[0],
            )
        return from_mapping(MeasuredRouting, values, where, ("routing",))
    return from_mapping(FixedRouting, values, where, ("routing",))


def _require_host_names(names: Sequence[str]) -> None:
    """Refuse names that occur twice, or that mpirun would misread: a comma or a colon ends a name for it."""
    if not all(re.fullmatch(r"\w[\w.-]*", name) for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"hosts must be {_HOSTS}, got {list(names)!r}", key="hosts")


def require_mode(mode: object) -> None:
    """Require one of MODES, or the form of a user's class.

    The class itself is looked up when a job starts.
    """
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
