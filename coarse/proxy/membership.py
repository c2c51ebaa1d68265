# Pure: no MPI, threads, clock or environment.
"""Membership of clients at a device: those that it serves, their tables, joins and leaves."""

from coarse.protocol.plan import Facts, Placement
from coarse.protocol.records import Deregister, Join, Joined, JoinFailed, Table


class Membership:
    """Record of clients: pure bookkeeping, apart from the synchronisation of keys."""

    def __init__(self, device: int, placement: Placement) -> None:
        self._num_clients = placement.num_clients
        self._decides_joins = device == 0
        self.own_clients = tuple(
            c for c, local in enumerate(placement.local_proxies) if local == device
        )
        """Clients whose local proxy this is."""
        self._tables: dict[int, dict[int, Table]] = {}
        self._joined: dict[int, list[Join]] = {}
        """Join records of each round, in the order in which they became known here."""
        self._deregistered: dict[int, dict[int, Deregister]] = {}
        self._left: set[int] = set()
        self._resigned: list[int] = []
        """Own clients that have shut down, and which those who join have not been told of yet."""
        self._ranks = placement.ranks

    def on_table(self, table: Table) -> tuple[Facts, ...] | None:
        """Return all clients' facts in order of client once the last has come, else None."""
        tables = self._tables.setdefault(table.epoch, {})
        tables[table.client] = table
        if len(tables) < self._num_clients:
            return None
        del self._tables[table.epoch]
        return tuple(tables[c].facts for c in range(self._num_clients))

    def on_deregister(self, deregister: Deregister) -> tuple[Deregister, ...]:
        """Return the records of all clients for a key once the last of them has deregistered it.

        Until then the tuple is empty.
        """
        said = self._deregistered.setdefault(deregister.key, {})
        said[deregister.client] = deregister
        if len(said) < self._num_clients:
            return ()
        return tuple(self._deregistered.pop(deregister.key).values())

    def on_join(self, join: Join) -> Joined | None:
        """Return the end of a round, said by device 0 alone so that all agree who was last.

        A client's own Join may overtake one that another device passes on, so their order of arrival means nothing.
        Every result needs all clients that have not joined: a client that joins later has had all results of one that
        joins earlier, and more of them unless there was none in between.
        """
        joined = self._joined.setdefault(join.round, [])
        joined.append(join)
        if len(joined) < self._num_clients:
            return None
        del self._joined[join.round]
        if not self._decides_joins:
            return None
        most = max(one.num_results for one in joined)
        last = [one.client for one in joined if one.num_results == most][-1]
        return Joined(last, join.round)

    def on_leave(self, client: int) -> None:
        """Note that a client has shut down or died."""
        self._left.add(client)

    def on_resigned(self, client: int) -> None:
        """Note that a client has shut down on purpose.

        Only its own device knows for sure which rounds it has joined.
        """
        if client in self.own_clients:
            self._resigned.append(client)

    def take_failed_join(self) -> JoinFailed | None:
        """Return, once, the error of a round that others have joined and an own client never will."""
        for client in self._resigned:
            if any(client not in {join.client for join in joined} for joined in self._joined.values()):
                self._resigned.clear()
                rank = self._ranks[client]
                text = (
                    f"rank {client} (MPI rank {rank}) has shut down without join(), for which others wait; "
                    "call join() on all ranks after their last batch"
                )
                return JoinFailed(rank, text)
        return None

    @property
    def all_left(self) -> bool:
        """True if no client is left to serve."""
        return len(self._left) == self._num_clients
