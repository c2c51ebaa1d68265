"""What ranks and links did in one iteration, event by event, and one run held against others as a partial order.

An event is a tuple of plain values: (kind, key, shard, ...). Of two events of a log an order is meant where both are of
one shard of one key, or both of a thread that does one thing after the other (`SEQUENCES`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from coarse.protocol.records import Push, Ready
from coarse.proxy.instructions import Reduce

Event = tuple[object, ...]
Log = Sequence[Event]
"""Of one rank, in the order in which things happened to it."""
READY, SET_OUT, PUSH, READY_READ = "ready", "set out", "push", "ready read"
PUSH_READ, READY_SENT = "push read", "ready sent"
FETCH, WRITE, CHUNK, CHUNK_READ = "fetch", "write", "chunk", "chunk read"
WORKERS = "workers"
GATHER, COMPUTED, REDUCE, REDUCED = "gather", "computed", "reduce", "reduced"
SEQUENCES = ({READY, SET_OUT}, {WORKERS}, {GATHER, COMPUTED, REDUCE, REDUCED})
"""Kinds of the thread that computes, of the workers' stream, and of the thread that computes with sharded units."""


def of_shards(kind: str, record: Push | Ready | Reduce, *more: object) -> Iterator[Event]:
    """An event of each shard that a record or a piece of work is about."""
    return ((kind, record.key, shard, *more) for shard in range(record.first, record.last))


def moved(work: Reduce, own: int) -> Iterator[Event]:
    """What a device, `own`, reads from other devices for a sum, and writes to others."""
    for kind, spots in ((FETCH, work.sources), (WRITE, work.targets)):
        for spot in spots:
            if spot.device != own:
                yield from of_shards(kind, work, spot.device)


def ordered_parts(log: Log) -> Iterator[list[Event]]:
    """Parts of a log within which the order of events means something."""
    parts: dict[object, list[Event]] = defaultdict(list)
    for event in log:
        parts[event[1:3]].append(event)
        for number, kinds in enumerate(SEQUENCES):
            if event[0] in kinds:
                parts[number].append(event)
    yield from parts.values()


def always_before(logs: Sequence[Log]) -> set[tuple[Event, Event]]:
    """Pairs of events of which the first came first in every log: what the second waits for, or what it follows."""
    found: set[tuple[Event, Event]] | None = None
    for log in logs:
        pairs = {pair for part in ordered_parts(log) for pair in combinations(part, 2)}
        found = pairs if found is None else found & pairs
    return found or set()


def numbered(log: Log) -> list[Event]:
    """Events that may be told apart: those that are equal are numbered, as contributions that lie on one device are."""
    seen: Counter[Event] = Counter()
    found = []
    for event in log:
        found.append((*event, seen[event]))
        seen[event] += 1
    return found


def require_alike(live: Mapping[str, Log], simulated: Sequence[Mapping[str, Log]]) -> None:
    """Raise AssertionError where a live run's events are not those of simulated ones, rank by rank, or come in an order
    that none of them has: `simulated` are runs of one job on links and adders of several speeds."""
    for rank, events in live.items():
        log, runs = numbered(events), [numbered(run.get(rank, ())) for run in simulated]
        found = Counter(log)
        for run in runs:
            wanted = Counter(run)
            assert found == wanted, (
                f"{rank}: only live {sorted(map(str, found - wanted))[:6]}, "
                f"only simulated {sorted(map(str, wanted - found))[:6]}"
            )
        places = {event: place for place, event in enumerate(log)}
        wrong = [
            (first, second)
            for first, second in always_before(runs)
            if places[first] > places[second]
        ]
        assert not wrong, f"{rank}: live the second of these came before the first: {wrong[:4]}"
