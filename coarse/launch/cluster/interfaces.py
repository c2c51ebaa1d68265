# Pure: no MPI, threads, clock or environment.
"""Bytes that crossed a network interface, by the kernel's count (/proc/net/dev) and by coarse's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_RECEIVED, _SENT = 0, 8
"""Columns of /proc/net/dev (proc(5))."""
_BYTES_PER_MB = 1e6
_NOT_TOLD = "not told"


@dataclass(frozen=True)
class Crossed:
    """Bytes in both directions."""

    received_bytes: int
    sent_bytes: int

    def __add__(self, other: "Crossed") -> "Crossed":
        return Crossed(self.received_bytes + other.received_bytes, self.sent_bytes + other.sent_bytes)

    def since(self, before: "Crossed") -> "Crossed":
        """Return the bytes beyond an earlier count."""
        return Crossed(self.received_bytes - before.received_bytes, self.sent_bytes - before.sent_bytes)


def crossed(text: str, interface: str) -> Crossed:
    """Return the bytes of one interface in the text of /proc/net/dev; KeyError if it has none."""
    columns = columns_of(text, interface)
    return Crossed(columns[_RECEIVED], columns[_SENT])


def columns_of(text: str, interface: str) -> list[int]:
    """Return all counts of one interface in the text of /proc/net/dev; KeyError if it has none."""
    counts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    columns = {name.strip(): values.split() for name, values in counts.items()}[interface]
    return [int(column) for column in columns]


@dataclass(frozen=True, kw_only=True)
class NodeTraffic:
    """Bytes of one job that crossed one node's interface."""

    node: str
    interface: Crossed | None
    """Bytes that crossed: gradients, protocol headers and acknowledgements, MPI's start, printed lines. None if the
    node is gone."""
    carried: Crossed | None
    """Bytes that the node's devices and groups of workers exchanged with others. None if not all have reported."""
    reduced_bytes: int | None
    """Bytes that each worker gave MPI to sum over all workers; MPI sends them by its own choice. None if none has
    reported."""


def traffic_lines(rows: Sequence[NodeTraffic], rate: str | None) -> list[str]:
    """Return a table of all nodes, kind: measured."""
    links = "links without a limit" if rate is None else f"links of {rate} in each direction"
    cells = [
        (
            "node",
            "received MB",
            "sent MB",
            "by coarse received MB",
            "sent MB",
            "beyond them",
            "workers' all-reduces MB",
        )
    ]
    for row in rows:
        reduced = _NOT_TOLD if row.reduced_bytes is None else _megabyte(row.reduced_bytes)
        cells.append((row.node, *_megabytes(row.interface), *_megabytes(row.carried), _beyond(row), reduced))
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    table = [
        "  ".join(cell.ljust(width) if not column else cell.rjust(width)
                  for column, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    ]  # fmt: skip
    return [f"coarse: bytes that crossed each node's interface (measured, cluster in a box, {links})", *table]


def carried_by_nodes(
    carried: Mapping[int, Crossed], ranks_by_node: Mapping[str, frozenset[int]]
) -> dict[str, Crossed | None]:
    """Return each node's sum over its ranks; None if one of them has not reported what it carried."""
    sums: dict[str, Crossed | None] = {}
    for node, ranks in ranks_by_node.items():
        is_whole = ranks <= carried.keys()
        sums[node] = sum((carried[rank] for rank in sorted(ranks)), Crossed(0, 0)) if is_whole else None
    return sums


def _megabytes(count: Crossed | None) -> tuple[str, str]:
    if count is None:
        return _NOT_TOLD, _NOT_TOLD
    return _megabyte(count.received_bytes), _megabyte(count.sent_bytes)


def _megabyte(nbytes: int) -> str:
    return f"{nbytes / _BYTES_PER_MB:.3f}"


def _beyond(row: NodeTraffic) -> str:
    """Return the excess of crossed over carried bytes, both directions together; a share if below one."""
    if row.carried is None or row.interface is None:
        return ""
    carried = row.carried.received_bytes + row.carried.sent_bytes
    over = row.interface.received_bytes + row.interface.sent_bytes - carried
    return f"{over / carried:.1%}" if over < carried else f"{_megabyte(over)} MB"
