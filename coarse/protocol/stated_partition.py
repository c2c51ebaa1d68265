"""The partition table of as many ranks as a partition itself states, before any rank runs."""

from typing import Any

from coarse.errors import ConfigError
from coarse.protocol.partition import PartitionTable, partition_from_text
from coarse.protocol.partition_file import partition_from_toml
from coarse.protocol.toml import TomlFile

MOST_RANKS = 65_535
"""Records have two bytes for a worker's number."""
_MOST_DIGITS = 9
_HOST = "this host"


def stated_partition(partition: str) -> PartitionTable:
    """The table that "2:2", roles or a .toml file makes of its own number of ranks, all on one host.

    Refuses what no job could run with; whether ranks that do run fit it is known only to them.
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
    """How many ranks a table lists; they must be 0, 1, ... without gaps."""
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
