"""Which clients a device serves, whose tables it has, and who has joined or left."""

from coarse.messages import Join, Joined, Table
from coarse.plan import Placement


class Membership:
    """Counts of clients; pure bookkeeping beside the synchronisation of keys."""

    def __init__(self, device: int, placement: Placement) -> None:
        self._num_clients = placement.num_clients
        self._decides_joins = device == 0
        self.own_clients = tuple(
            c for c, local in enumerate(placement.local_proxies) if local == device
        )
        """Clients whose local proxy this is."""
        self._tables: dict[int, dict[int, Table]] = {}
        self._joined: dict[int, list[int]] = {}
        self._left: set[int] = set()

    def on_table(self, table: Table) -> tuple[tuple[int, int, int, int], ...] | None:
        """All clients' tables in order of client once the last has come, else None."""
        tables = self._tables.setdefault(table.epoch, {})
        tables[table.client] = table
        if len(tables) < self._num_clients:
            return None
        del self._tables[table.epoch]
        rows = [tables[c] for c in range(self._num_clients)]
        return tuple(
            (t.threshold_bytes, t.latency_proxy, t.bandwidth_proxy, t.partition_bytes) for t in rows
        )

    def on_join(self, join: Join) -> Joined | None:
        """The end of a round, said by device 0 alone so that all agree who was last."""
        joined = self._joined.setdefault(join.round, [])
        joined.append(join.client)
        if len(joined) < self._num_clients:
            return None
        del self._joined[join.round]
        return Joined(join.client, join.round) if self._decides_joins else None

    def on_leave(self, client: int) -> None:
        """A client has shut down or died."""
        self._left.add(client)

    @property
    def all_left(self) -> bool:
        """Whether nobody is left to serve."""
        return len(self._left) == self._num_clients
