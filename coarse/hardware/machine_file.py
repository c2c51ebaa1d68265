# Pure: no MPI, threads, clock or environment. Reads and writes files.
"""Machines as TOML files: units in the keys, unknown keys refused, errors with file and line."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from coarse.errors import ConfigError
from coarse.hardware.coherence import Coherence
from coarse.hardware.machine import Accelerator, Disks, Machine, MemoryDevice
from coarse.hardware.machine_text import machine_text
from coarse.hardware.network_tree import TreeLevel
from coarse.hardware.quantities import FLOPS, RATES, SIZES, TABLES, TIMES, Quantity, refuse_other_keys
from coarse.hardware.shared_pool import SharedPool
from coarse.hardware.topology_tree import HOST, Place, PlaceKind, Tree
from coarse.hardware.unlike_nodes import UnlikeNodes, node_ranges
from coarse.hardware.wire import Wire
from coarse.hardware.wiring import Cable
from coarse.protocol.toml import KeyPath, TomlFile

Part = TypeVar("Part")

ACCELERATOR = (
    Quantity("memory", SIZES, "memory_bytes"),
    Quantity("fp32", FLOPS, "fp32_flops_per_s"),
    Quantity("fp16", FLOPS, "fp16_flops_per_s"),
    Quantity("memory_bandwidth", RATES, "memory_bytes_per_s"),
)
MEMORY_DEVICE = (
    Quantity("adder", RATES, "adder_bytes_per_s"),
    Quantity("optimizer", RATES, "optimizer_bytes_per_s"),
    Quantity("capacity", SIZES, "capacity_bytes"),
)
DISKS = (
    Quantity("host_memory", SIZES, "host_memory_bytes"),
    Quantity("worker", RATES, "worker_bytes_per_s"),
    Quantity("worker_capacity", SIZES, "worker_capacity_bytes"),
    Quantity("optimizer", RATES, "optimizer_bytes_per_s"),
    Quantity("optimizer_capacity", SIZES, "optimizer_capacity_bytes"),
)
COHERENCE = (
    Quantity("load", RATES, "load_bytes_per_s"),
    Quantity("store", RATES, "store_bytes_per_s"),
    Quantity("latency", TIMES, "latency_s", or_zero=True),
    Quantity("load_outstanding", SIZES, "load_outstanding_bytes", is_needed=False),
    Quantity("store_outstanding", SIZES, "store_outstanding_bytes", is_needed=False),
    Quantity("software_flush", RATES, "software_flush_bytes_per_s", is_needed=False),
    Quantity("software_flush_latency", TIMES, "software_flush_latency_s", is_needed=False, or_zero=True),
)
POOL = (
    Quantity("device", RATES, "device_bytes_per_s"),
    Quantity("device_latency", TIMES, "device_latency_s", or_zero=True),
    Quantity("store", RATES, "store_bytes_per_s", is_needed=False),
    Quantity("software_flush", RATES, "software_flush_bytes_per_s", is_needed=False),
    Quantity("software_flush_latency", TIMES, "software_flush_latency_s", is_needed=False, or_zero=True),
)
POOL_COUNTS = ("num_uncontended_hosts", "contention_growth")
POOL_WIRES = ("wire", "switch")
WIRE = (
    Quantity("bandwidth", RATES, "bytes_per_s"),
    Quantity("latency", TIMES, "latency_s", is_needed=False, or_zero=True),
    Quantity("outstanding", SIZES, "outstanding_bytes", is_needed=False),
    Quantity("table", TABLES, "table", is_needed=False),
    Quantity("up_table", TABLES, "up_table", is_needed=False),
    Quantity("down_table", TABLES, "down_table", is_needed=False),
    Quantity("duplex", RATES, "duplex_bytes_per_s", is_needed=False),
    Quantity("duplex_table", TABLES, "duplex_table", is_needed=False),
    Quantity("turn", RATES, "turn_bytes_per_s", is_needed=False),
    Quantity("turn_table", TABLES, "turn_table", is_needed=False),
)
TREE_LEVEL = (Quantity("hop_latency", TIMES, "hop_latency_s", is_needed=False, or_zero=True),)
TOP_KINDS = {
    "name": str,
    "peer_to_peer": bool,
    "nvlink_on": bool,
    "cci_on": bool,
    "pool_on": bool,
    "cci_wire": str,
    "network_wire": str,
    "num_nodes": int,
}
UNLIKE_KEYS = ("compute_slow_down", "network_wire", "nvlink_on")
"""Keys in which [[node]]s may differ from the others."""
TABLES_OF_ONE = ("accelerator", "memory_device", "coherence", "disks", "pool")
TABLES_OF_MANY = ("wire", *(kind.value for kind in PlaceKind), "nvlink", "tree_level", "node")


def load_machine(path: str | Path) -> Machine:
    """Return the machine of a TOML file; ConfigError with file, line, key and remedy if it cannot be."""
    return machine_from_toml(TomlFile.read(path))


def save_machine(machine: Machine, path: str | Path) -> None:
    """Write a file from which `load_machine` makes an equal machine."""
    try:
        Path(path).write_text(machine_text(machine), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); check the path") from None


def machine_from_toml(toml: TomlFile) -> Machine:
    """Return the machine that a file's values state."""
    values = toml.values
    refuse_other_keys(values, (*TOP_KINDS, *TABLES_OF_ONE, *TABLES_OF_MANY, "intervals"), (), (), toml.where)
    for key, kind in TOP_KINDS.items():
        is_needed = key in ("name", "peer_to_peer")
        if (key in values or is_needed) and type(values.get(key)) is not kind:
            wanted = {str: "text", bool: "true or false", int: "a whole number"}[kind]
            raise ConfigError(f"{toml.where((key,))}: {key} must be {wanted}, got {values.get(key)!r}; set it", key=key)
    wires = _Wires(toml)
    fields: dict[str, Any] = {
        "name": values["name"],
        "tree": _tree(toml, wires),
        "accelerator": _one(toml, "accelerator", ACCELERATOR, Accelerator, ("name",)),
        "memory_device": _one(toml, "memory_device", MEMORY_DEVICE, MemoryDevice, ()),
        "peer_to_peer": values["peer_to_peer"],
        "nvlink": values.get("nvlink_on", True),
        "cci": values.get("cci_on", True),
        "num_nodes": values.get("num_nodes", 1),
        "cci_wire": wires.named(("cci_wire",), values.get("cci_wire")),
        "network": wires.named(("network_wire",), values.get("network_wire")),
    }
    if "coherence" in values:
        fields["coherence"] = _one(toml, "coherence", COHERENCE, Coherence, ("sharer_growth",))
    if "pool" in values:
        fields |= {"pool": _pool(toml, wires), "pool_on": values.get("pool_on", True)}
    if "disks" in values:
        fields["disks"] = _one(toml, "disks", DISKS, Disks, ("num_optimizer_disks",))
    fields["tree_levels"] = tuple(
        _tree_level(toml, number, entry) for number, entry in enumerate(_entries(toml, "tree_level"))
    )
    fields["unlike_nodes"] = tuple(
        _unlike(toml, wires, number, entry) for number, entry in enumerate(_entries(toml, "node"))
    )
    cables = tuple(_cable(toml, wires, number, entry) for number, entry in enumerate(_entries(toml, "nvlink")))
    return _made(toml, (), lambda: Machine(**fields, nvlinks=cables), {})


class _Wires:
    """Wires of a file by name; errors about a missing one list those that are there."""

    def __init__(self, toml: TomlFile) -> None:
        self._toml = toml
        self._by_name: dict[str, Wire] = {}
        for number, entry in enumerate(_entries(toml, "wire")):
            path = ("wire", number)
            values, keys = _quantities(toml, path, entry, WIRE, ("name",))
            table = values.pop("table", ())
            for direction in ("up_table", "down_table"):
                if table and direction in values:
                    raise ConfigError(
                        f"{toml.where((*path, keys[direction]))}: {keys['table']} states both directions already; "
                        f"remove it or {keys[direction]}",
                        key=keys[direction],
                    )
            values = {"up_table": table, "down_table": table, **values}
            wire = _made(toml, path, lambda values=values: Wire(**values), keys)  # type: ignore[misc]
            if wire.name in self._by_name:
                raise ConfigError(f"{toml.where((*path, 'name'))}: wire {wire.name!r} stands twice; rename one")
            self._by_name[wire.name] = wire

    def named(self, path: KeyPath, name: object) -> Wire | None:
        """Return the wire that a setting names; None if it names none."""
        if name is None:
            return None
        if not isinstance(name, str) or name not in self._by_name:
            raise ConfigError(
                f"{self._toml.where(path)}: {path[-1]} must name a [[wire]] of the file, "
                f"one of {', '.join(self._by_name) or 'none yet'}, got {name!r}; add it or correct the name",
                key=str(path[-1]),
            )
        return self._by_name[name]


def _tree(toml: TomlFile, wires: _Wires) -> Tree:
    places: list[Place] = []
    paths: dict[str, KeyPath] = {}
    for kind in PlaceKind:
        for number, entry in enumerate(_entries(toml, kind.value)):
            path = (kind.value, number)
            place = _place(toml, wires, kind, path, entry)
            paths[f"{kind.value}.{place.name}"] = path
            places.append(place)
    try:
        return Tree(places=tuple(places))
    except ConfigError as error:
        owner, _, setting = (error.key or "").rpartition(".")
        raise ConfigError(f"{toml.where((*paths.get(owner, ()), setting))}: {error}", key=setting) from None


def _place(toml: TomlFile, wires: _Wires, kind: PlaceKind, path: KeyPath, entry: Mapping[str, Any]) -> Place:
    is_socket = kind is PlaceKind.SOCKET
    names = ("name", "parent", "wire", "crossing", "staging")
    refuse_other_keys(entry, names, (), path, toml.where)
    for key in ("name", "wire") if is_socket else ("name", "parent", "wire"):
        if key not in entry:
            raise ConfigError(f"{toml.where(path)}: {key!r} of a {kind.value} is missing; set it", key=key)
    parent = entry.get("parent", HOST)
    if not isinstance(parent, str):
        raise ConfigError(
            f"{toml.where((*path, 'parent'))}: parent must be text, got {parent!r}; name a place", key="parent"
        )
    wire, crossing, staging = (wires.named((*path, key), entry.get(key)) for key in ("wire", "crossing", "staging"))
    assert wire is not None
    return _made(
        toml,
        path,
        lambda: Place(
            name=entry["name"], kind=kind, parent=parent, wire=wire, crossing=crossing, staging=staging
        ),
        {},
    )


def _cable(toml: TomlFile, wires: _Wires, number: int, entry: Mapping[str, Any]) -> Cable:
    path = ("nvlink", number)
    refuse_other_keys(entry, ("between", "wire"), (), path, toml.where)
    between = entry.get("between")
    if not isinstance(between, list) or len(between) != 2 or not all(isinstance(end, str) for end in between):
        raise ConfigError(
            f'{toml.where((*path, "between"))}: between must name two GPUs, such as ["gpu0", "gpu1"], '
            f"got {between!r}; set it",
            key="between",
        )
    wire = wires.named((*path, "wire"), entry.get("wire"))
    if wire is None:
        raise ConfigError(f"{toml.where(path)}: 'wire' of an nvlink is missing; set it", key="wire")
    return Cable(between=(between[0], between[1]), wire=wire)


def _tree_level(toml: TomlFile, number: int, entry: Mapping[str, Any]) -> TreeLevel:
    path = ("tree_level", number)
    stated = {key: value for key, value in entry.items() if key != "oversubscription"}
    values, keys = _quantities(toml, path, stated, TREE_LEVEL, ("name", "nodes_per_switch"))
    values |= {key: entry[key] for key in ("oversubscription",) if key in entry}
    return _made(toml, path, lambda: TreeLevel(**values), keys)


def _unlike(toml: TomlFile, wires: _Wires, number: int, entry: Mapping[str, Any]) -> UnlikeNodes:
    path = ("node", number)
    refuse_other_keys(entry, ("name", "numbers", *UNLIKE_KEYS), (), path, toml.where)
    if "name" not in entry:
        raise ConfigError(f"{toml.where(path)}: 'name' of a node is missing; set it", key="name")
    nvlink = entry.get("nvlink_on", True)
    if not isinstance(nvlink, bool):
        raise ConfigError(
            f"{toml.where((*path, 'nvlink_on'))}: nvlink_on must be true or false, got {nvlink!r}; set it",
            key="nvlink_on",
        )
    network = wires.named((*path, "network_wire"), entry.get("network_wire"))
    return _made(
        toml,
        path,
        lambda: UnlikeNodes(
            name=entry["name"],
            ranges=node_ranges(entry.get("numbers")),
            compute_slow_down=entry.get("compute_slow_down", 1.0),
            network=network,
            nvlink=nvlink,
        ),
        {},
    )


def _pool(toml: TomlFile, wires: _Wires) -> SharedPool:
    table = toml.values["pool"]
    if not isinstance(table, dict):
        raise ConfigError(f"{toml.where(('pool',))}: write one table [pool]", key="pool")
    stated = {key: value for key, value in table.items() if key not in (*POOL_COUNTS, *POOL_WIRES)}
    values, keys = _quantities(toml, ("pool",), stated, POOL, ("num_devices",))
    values |= {key: table[key] for key in POOL_COUNTS if key in table}
    values |= {key: wires.named(("pool", key), table.get(key)) for key in POOL_WIRES}
    if values["wire"] is None:
        raise ConfigError(f"{toml.where(('pool',))}: 'wire' of the pool is missing; set it", key="wire")
    return _made(toml, ("pool",), lambda: SharedPool(**values), keys)


def _one(
    toml: TomlFile, name: str, quantities: tuple[Quantity, ...], kind: Callable[..., Part], plain: tuple[str, ...]
) -> Part:
    table = toml.values.get(name)
    if not isinstance(table, dict):
        raise ConfigError(f"{toml.where((name,))}: table [{name}] is missing; add it", key=name)
    values, keys = _quantities(toml, (name,), table, quantities, plain)
    return _made(toml, (name,), lambda: kind(**values), keys)


def _entries(toml: TomlFile, name: str) -> list[dict[str, Any]]:
    entries = toml.values.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{toml.where((name,))}: write one [[{name}]] table for each {name}", key=name)
    return entries


def _quantities(
    toml: TomlFile, path: KeyPath, table: Mapping[str, Any], quantities: tuple[Quantity, ...], plain: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields that a table states, converted, and the key that stated each."""
    refuse_other_keys(table, plain, quantities, path, toml.where)
    values: dict[str, Any] = {}
    keys: dict[str, str] = {}
    with toml.located(path):
        for key in plain:
            if key not in table:
                raise ConfigError(f"{key!r} is missing; set it", key=key)
            values[key] = table[key]
        for quantity in quantities:
            read = quantity.read(table)
            if read is not None:
                keys[quantity.field], values[quantity.field] = read
    return values, keys


def _made(toml: TomlFile, path: KeyPath, make: Callable[[], Part], keys: Mapping[str, str]) -> Part:
    """Return the result of `make`; an error of a field names the line of the key that stated it.

    Of several entries it names TABLE.NUMBER.KEY.
    """
    try:
        return make()
    except ConfigError as error:
        key = keys.get(error.key or "", error.key or "")
        parts = (int(part) if part.isdecimal() else part for part in key.split("."))
        raise ConfigError(f"{toml.where((*path, *parts))}: {error}", key=key) from None
