# Pure: no MPI, threads, clock or environment.
"""Fields of a machine file by dotted names, such as `wire.cci.latency_us`, and changes of some."""

import copy
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from coarse.errors import ConfigError
from coarse.hardware.machine import Machine
from coarse.hardware.machine_file import (
    ACCELERATOR,
    COHERENCE,
    DISKS,
    MEMORY_DEVICE,
    POOL,
    POOL_COUNTS,
    POOL_WIRES,
    TABLES_OF_MANY,
    TABLES_OF_ONE,
    TOP_KINDS,
    TREE_LEVEL,
    UNLIKE_KEYS,
    WIRE,
    machine_from_toml,
)
from coarse.hardware.quantities import TABLES, Quantity
from coarse.hardware.topology_tree import PlaceKind
from coarse.protocol.toml import TomlFile

FieldValue = bool | int | float | str

_PLACE_KEYS = ("parent", "wire", "crossing", "staging")
QUANTITIES: dict[str, tuple[Quantity, ...]] = {
    "accelerator": ACCELERATOR,
    "memory_device": MEMORY_DEVICE,
    "coherence": COHERENCE,
    "disks": DISKS,
    "pool": POOL,
    "wire": WIRE,
    "tree_level": TREE_LEVEL,
}
_PLAIN: dict[str, tuple[str, ...]] = {
    "coherence": ("sharer_growth",),
    "disks": ("num_optimizer_disks",),
    "pool": ("num_devices", *POOL_COUNTS, *POOL_WIRES),
    "nvlink": ("wire",),
    "tree_level": ("nodes_per_switch", "oversubscription"),
    "node": UNLIKE_KEYS,
    **{kind.value: _PLACE_KEYS for kind in PlaceKind},
}
"""Keys without a unit; names are left out, for wires and places are addressed by them."""
_TOP = tuple(key for key in TOP_KINDS if key != "name")


def is_machine_field(name: str) -> bool:
    """Return whether a name is meant for a field of the machine's file, spelt rightly or not."""
    return "." in name or name in _TOP


def changed_machine(toml: TomlFile, changes: Mapping[str, FieldValue]) -> Machine:
    """Return the machine of a file of which some fields have other values.

    Raises:
        ConfigError: a field that the file cannot have (with the near ones), a unit that it cannot be stated in,
            two units of one field, or a value that the field cannot have.
    """
    machine = machine_from_toml(toml)
    if not changes:
        return machine
    values = copy.deepcopy(toml.values)
    quantities: dict[tuple[int, str], str] = {}
    for name, value in changes.items():
        table, key = _table_of(values, name)
        quantity = _quantity_of(name, key)
        if quantity is None:
            table[key] = value
            continue
        before = quantities.setdefault((id(table), quantity.name), name)
        if before != name:
            raise ConfigError(f"{before} and {name} state the same; vary one of them", key=name)
        for other in quantity.keys:
            table.pop(other, None)
        table[key] = value
    try:
        return machine_from_toml(TomlFile(toml.path, toml.text, values))
    except ConfigError as error:
        stated = ", ".join(f"{name} = {value}" for name, value in changes.items())
        raise ConfigError(f"with {stated}: {error}", key=next(iter(changes))) from None


def stated_value(toml: TomlFile, name: str) -> float:
    """Return the number that the file states for a field.

    Raises:
        ConfigError: it states none, or another unit's.
    """
    table, key = _table_of(toml.values, name)
    value = table.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    quantity = _quantity_of(name, key)
    stated = [other for other in (quantity.keys if quantity else ()) if other in table]
    remedy = f"it states {name.removesuffix(key)}{stated[0]}" if stated else "state the field first"
    raise ConfigError(f"the machine's file states no number for {name}; {remedy}", key=name)


def field_names(toml: TomlFile) -> tuple[str, ...]:
    """Return the fields that `changed_machine` can change in a file, by unit, without tables of times."""
    return tuple(_names(toml.values))


def has_times(toml: TomlFile, name: str) -> bool:
    """Return whether a name is that of a wire's rate, with a table of measured times beside it."""
    table, key = _table_of(toml.values, name)
    quantity = _quantity_of(name, key)
    if quantity is None or not name.startswith("wire.") or quantity.name == "latency":
        return False
    prefixes = {"bandwidth": ("table_", "up_table_", "down_table_")}.get(quantity.name, (f"{quantity.name}_table_",))
    return any(str(other).startswith(prefixes) for other in table)


def _names(values: Mapping[str, Any]) -> Iterator[str]:
    yield from _TOP
    for kind in TABLES_OF_ONE:
        if kind in values:
            yield from (f"{kind}.{key}" for key in _keys(kind))
    for kind in TABLES_OF_MANY:
        for entry in values.get(kind, ()):
            yield from (f"{kind}.{_entry_name(entry)}.{key}" for key in _keys(kind))


def _keys(kind: str) -> list[str]:
    units = [key for each in QUANTITIES.get(kind, ()) if each.units is not TABLES for key in each.keys]
    return [*units, *_PLAIN.get(kind, ())]


def _entry_name(entry: Mapping[str, Any]) -> str:
    """Return the name by which an entry of `[[kind]]` is addressed; of an NVLink the GPUs that it joins."""
    return str(entry["name"]) if "name" in entry else "-".join(map(str, entry.get("between", ())))


def _table_of(values: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    """Return (the table that holds a field, the field's key).

    Raises:
        ConfigError: there is no such field.
    """
    kind, _, rest = name.partition(".")
    if name in _TOP:
        return values, name
    if kind in TABLES_OF_ONE and kind in values and rest in _keys(kind):
        table: dict[str, Any] = values[kind]
        return table, rest
    which, _, key = rest.rpartition(".")
    if kind in TABLES_OF_MANY and key in _keys(kind):
        for entry in values.get(kind, ()):
            if _entry_name(entry) == which:
                return entry, key
    raise _unknown(values, name)


def _unknown(values: Mapping[str, Any], name: str) -> ConfigError:
    known = list(_names(values))
    table, _, key = name.rpartition(".")
    beside = [other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == table]
    kind = table.partition(".")[0]
    near = [each for each in QUANTITIES.get(kind, ()) if key == each.name or key.startswith(f"{each.name}_")]
    if beside and near and near[-1].units is not TABLES:
        units = ", ".join(f"{table}.{other}" for other in near[-1].keys)
        return ConfigError(f"{name} has no known unit; write one of {units}", key=name)
    if not beside and kind in TABLES_OF_ONE:
        return ConfigError(f"{name}: the machine's file has no table [{kind}]; add it, or take another field", key=name)
    found = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if not found and beside:
        found = [f"{table}.{other}" for other in beside]
    tables = dict.fromkeys(other.rpartition(".")[0] for other in known if "." in other)
    remedy = f"did you mean {' or '.join(found)}?" if found else f"tables with fields are {', '.join(tables)}"
    return ConfigError(f"the machine's file has no field {name}; {remedy}", key=name)


def _quantity_of(name: str, key: str) -> Quantity | None:
    """Return the quantity that a key states in one of its units; None if it has no unit."""
    quantities = QUANTITIES.get(name.partition(".")[0], ())
    return next((each for each in quantities if key in each.keys), None)
