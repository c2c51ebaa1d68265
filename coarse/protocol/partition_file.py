"""Partition tables of TOML files, with errors that name file and line, and of configurations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coarse.errors import ConfigError
from coarse.protocol.partition import (
    DEFAULT_SWITCH,
    ROLE_NAMES,
    PartitionTable,
    RankPlace,
    Role,
    partition_from_nodes,
    partition_from_places,
    partition_from_text,
    ranks_with,
)
from coarse.protocol.place import (
    Anywhere,
    DaxDevice,
    ExistingFile,
    GpuMemory,
    MemoryPlace,
    in_range,
    memory_place,
    overlap,
)
from coarse.protocol.toml import TomlFile, refuse_unknown_keys

RANK_KEYS = {
    "rank": int,
    "role": str,
    "node": str,
    "switch": str,
    "local_proxy": int,
    "memory": str,
    "memory_offset_bytes": int,
    "memory_bytes": int,
}


def stated_or_default(partition: str | None, nodes: Sequence[str]) -> PartitionTable:
    """Return the table that a configuration's `partition` means for ranks on `nodes` (host by world rank)."""
    if partition is None:
        return partition_from_nodes(nodes)
    if partition.endswith(".toml"):
        return partition_from_toml(partition, nodes)
    return partition_from_text(partition, nodes)


def partition_from_toml(path: str | Path, nodes: Sequence[str]) -> PartitionTable:
    """Return the table of a TOML file with one [[rank]] per world rank; errors name file and line.

    A table may split one host into several named nodes, but never join two hosts.
    """
    toml = TomlFile.read(path)
    refuse_unknown_keys(toml.values, ("rank", "memory"), (), toml.where)
    entries = toml.values.get("rank", [])
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{toml.where(('rank',))}: write one [[rank]] table for each rank")
    places = _all_places(toml, entries, nodes)
    missing = sorted(set(range(len(nodes))) - set(places))
    if missing:
        raise ConfigError(
            f"{toml.where(('rank',))}: {len(nodes)} ranks run, but ranks {missing} are not listed; "
            "add a [[rank]] for each, or start fewer"
        )
    ordered = tuple(places[rank] for rank in range(len(nodes)))
    _refuse_overlaps(ordered, nodes)
    _refuse_mixed_memory(ordered)
    stated: dict[int, int] = {}
    for number, entry in enumerate(entries):
        if "local_proxy" in entry:
            with toml.located(("rank", number)):
                stated[entry["rank"]] = _stated_proxy(entry, ordered)
    with toml.located(("rank",)):
        return partition_from_places(ordered, stated)


def _all_places(
    toml: TomlFile, entries: Sequence[Mapping[str, Any]], nodes: Sequence[str]
) -> dict[int, RankPlace]:
    """Return the place of each world rank that the file lists."""
    default = _default_memory(toml)
    places: dict[int, RankPlace] = {}
    hosts: dict[str, str] = {}
    for number, entry in enumerate(entries):
        refuse_unknown_keys(entry, RANK_KEYS, ("rank", number), toml.where)
        with toml.located(("rank", number)):
            stated = [key for key in ("memory", "memory_offset_bytes", "memory_bytes") if key in entry]
            said_at = toml.where(("rank", number, stated[0]) if stated else ("memory",))
            place = _place(entry, nodes, default, said_at)
            if place.rank in places:
                raise ConfigError(f"rank {place.rank} is listed twice; remove one", key="rank")
            host = hosts.setdefault(place.node, nodes[place.rank])
            if host != nodes[place.rank]:
                raise ConfigError(
                    f"node {place.node!r} would join hosts {host} and {nodes[place.rank]}, which "
                    f"share no memory; give rank {place.rank} another node",
                    key="node",
                )
        places[place.rank] = place
    return places


def _default_memory(toml: TomlFile) -> MemoryPlace:
    """Return the place of memory devices whose entry names none."""
    text = toml.values.get("memory")
    if text is None:
        return Anywhere()
    with toml.located(()):
        if not isinstance(text, str):
            raise ConfigError(f"memory must be text, got {text!r}", key="memory")
        return memory_place(text)


def _place(
    entry: Mapping[str, Any], nodes: Sequence[str], default: MemoryPlace, memory_said_at: str
) -> RankPlace:
    for key, kind in RANK_KEYS.items():
        is_needed = key in ("rank", "role")
        if (key in entry or is_needed) and type(entry.get(key)) is not kind:
            wanted = "a whole number" if kind is int else "text"
            raise ConfigError(f"{key} must be {wanted}, got {entry.get(key)!r}", key=key)
    rank, role = entry["rank"], entry["role"]
    if not 0 <= rank < len(nodes):
        raise ConfigError(
            f"rank must lie in 0..{len(nodes) - 1} since {len(nodes)} ranks run, got {rank}; "
            "start more ranks or remove it",
            key="rank",
        )
    if role not in ROLE_NAMES:
        raise ConfigError(f"role must be one of {', '.join(ROLE_NAMES)}, got {role!r}", key="role")
    roles = ROLE_NAMES[role]
    if "memory" in entry:
        memory = memory_place(entry["memory"])
    else:
        memory = default if Role.MEMORY_DEVICE in roles else Anywhere()
    memory = in_range(memory, entry.get("memory_offset_bytes"), entry.get("memory_bytes"))
    return RankPlace(
        rank=rank,
        roles=roles,
        node=entry.get("node", nodes[rank]),
        switch=entry.get("switch", DEFAULT_SWITCH),
        memory=memory,
        memory_said_at=memory_said_at,
    )


def _refuse_overlaps(places: Sequence[RankPlace], nodes: Sequence[str]) -> None:
    """Refuse two memory devices of one host with bytes in common, which each would have for itself."""
    seen: dict[tuple[str, str], list[RankPlace]] = {}
    for place in places:
        if not isinstance(place.memory, DaxDevice | ExistingFile):
            continue
        earlier = seen.setdefault((nodes[place.rank], place.memory.path), [])
        for owner in earlier:
            if overlap(place.memory, owner.memory):
                has = "has for itself" if place.memory == owner.memory else f"has in part, as '{owner.memory}'"
                raise ConfigError(
                    f"{place.memory_said_at}: memory of rank {place.rank} is '{place.memory}', which rank "
                    f"{owner.rank} on the same host {nodes[owner.rank]} {has}; name another device or file, or give "
                    "each bytes of its own (memory_offset_bytes, memory_bytes; without memory_bytes a device has all "
                    "to the end)",
                    key="memory",
                )
        earlier.append(place)


def _refuse_mixed_memory(places: Sequence[RankPlace]) -> None:
    """Refuse a node on which only some of the memory devices are GPUs.

    A GPU adds where a contribution lies, which other devices cannot.
    """
    devices = [place for place in places if Role.MEMORY_DEVICE in place.roles]
    for node in {place.node for place in devices}:
        here = [place for place in devices if place.node == node]
        on_gpu = [place for place in here if isinstance(place.memory, GpuMemory)]
        others = [place for place in here if not isinstance(place.memory, GpuMemory)]
        if on_gpu and others:
            one, other = on_gpu[0], others[0]
            raise ConfigError(
                f"{one.memory_said_at}: memory of rank {one.rank} is '{one.memory}', and that of rank {other.rank} on "
                f"the same node {node} is '{other.memory}'; put all memory devices of a node on GPUs, or none",
                key="memory",
            )


def _stated_proxy(entry: Mapping[str, Any], places: Sequence[RankPlace]) -> int:
    """Return the device index of the world rank that an entry names as its local proxy."""
    rank, proxy_rank = entry["rank"], entry["local_proxy"]
    if Role.WORKER not in places[rank].roles:
        raise ConfigError(f"rank {rank} is no worker, so it has no local proxy", key="local_proxy")
    devices = ranks_with(places, Role.MEMORY_DEVICE)
    near = [device for device in devices if places[device].node == places[rank].node]
    if proxy_rank not in near:
        raise ConfigError(
            f"local_proxy of rank {rank} must be the rank of a memory device on node "
            f"{places[rank].node}, one of {near}, got {proxy_rank}",
            key="local_proxy",
        )
    return devices.index(proxy_rank)


MOST_RANKS = 65_535
"""Most ranks of a job: records have two bytes for a worker's number."""
_MOST_DIGITS = 9
_HOST = "this host"


def stated_partition(partition: str) -> PartitionTable:
    """Return the table that "2:2", roles or a .toml file makes of its own number of ranks on one host.

    It refuses tables with which no job could run. Only the ranks that do run know whether the table fits them.
    """
    if partition.endswith(".toml"):
        return partition_from_toml(partition, [_HOST] * _num_listed(partition))
    counts = [part.strip() for part in partition.split(":")]
    if len(counts) == 2 and all(count.isdecimal() for count in counts):
        if "0" in {count.lstrip("0") or "0" for count in counts}:
            raise ConfigError(
                f"partition {partition!r}: at least 1 worker and 1 memory device are needed, "
                f"got {counts[0]} and {counts[1]}; such as '2:2'",
                key="partition",
            )
        num_ranks = sum(int(count[-_MOST_DIGITS:]) for count in counts)
        if num_ranks > MOST_RANKS or max(map(len, counts)) > _MOST_DIGITS:
            raise ConfigError(
                f"partition {partition!r}: a job has at most {MOST_RANKS} ranks; coarse predict simulates more",
                key="partition",
            )
        return partition_from_text(partition, [_HOST] * num_ranks)
    return partition_from_text(partition, [_HOST] * len(partition.split(",")))


def _num_listed(path: str) -> int:
    """Return the number of ranks that a table lists; they must be 0, 1, ... without gaps."""
    toml = TomlFile.read(path)
    entries = toml.values.get("rank", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return 0  # refused when the table is read
    ranks = [entry.get("rank") for entry in entries]
    if set(ranks) != set(range(len(ranks))) and len(set(ranks)) == len(ranks) and _are_ranks(ranks):
        raise ConfigError(
            f"{toml.where(('rank',))}: {len(ranks)} ranks are listed, which must be 0 to {len(ranks) - 1}, "
            f"got {sorted(ranks)}; number them without gaps"
        )
    return len(entries)


def _are_ranks(values: list[Any]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)
