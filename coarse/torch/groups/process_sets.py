"""Process sets: some of the workers, who call collectives among themselves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from coarse import arrays, session
from coarse.errors import ConfigError
from coarse.parallel.data.equal_values import require_same
from coarse.session import current
from coarse.torch.names import named

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.protocol.config import Config
    from coarse.runtime import Runtime
    from coarse.torch.groups.group import Group


class ProcessSet:
    """Workers of these ranks, in ascending order, to be added by `add_process_set` before the first use."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks: list[int] | None = sorted(int(rank) for rank in ranks)
        """Ranks (`coarse.rank()`) of its members; None for all workers."""
        self.process_set_id: int | None = None
        """Number of the set: 0 for all workers; None while it is not added."""

    def included(self) -> bool:
        """Return whether this worker is a member."""
        return current().client_index in members_of(self)

    def size(self) -> int:
        """Return the number of members."""
        return len(members_of(self))

    def rank(self) -> int:
        """Return this worker's number among the members.

        Raises:
            ValueError: it is no member.
        """
        members, worker = members_of(self), current().client_index
        if worker not in members:
            raise ValueError(f"rank {worker}: process set {self} does not include this rank; ask included() first")
        return members.index(worker)

    def __repr__(self) -> str:
        return f"ProcessSet({'all' if self.ranks is None else self.ranks})"


global_process_set = ProcessSet(())
"""Set of all workers."""
global_process_set.ranks = None
global_process_set.process_set_id = 0


@dataclass
class _Sets:
    """Process sets of a runtime."""

    added: dict[int, ProcessSet] = field(default_factory=dict)
    groups: dict[int, "Group"] = field(default_factory=dict)
    """Group by which the members communicate, by the number of the set."""
    num_added: int = 0


_sets: "WeakKeyDictionary[Runtime, _Sets]" = WeakKeyDictionary()


def members_of(process_set: ProcessSet) -> tuple[int, ...]:
    """Return `coarse.rank()` of the members, ascending."""
    if process_set.ranks is None:
        return tuple(range(current().placement.num_clients))
    return tuple(process_set.ranks)


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Make a process set known; all workers call it, in one order, with equal ranks.

    Raises:
        ValueError: ranks that are no workers, that repeat, or none.
        MismatchError: ranks give different sets (on all ranks).
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    members = members_of(made)
    num_workers = current().placement.num_clients
    require_same([("ranks", str(members))], "the process set's")
    if not members or len(set(members)) < len(members) or not 0 <= members[0] <= members[-1] < num_workers:
        raise ValueError(f"a process set has different ranks from 0 to {num_workers - 1}, got {list(members)}")
    sets = _sets.setdefault(current(), _Sets())
    if made.process_set_id is not None and sets.added.get(made.process_set_id) is made:
        raise ValueError(f"{made} was added already")
    sets.num_added += 1
    made.process_set_id = sets.num_added
    sets.added[sets.num_added] = made
    if made.included():
        group_of(made)
    return made


def init(config: "Config | Mapping[str, object] | str | Path | None" = None) -> None:
    """Initialise as coarse.init does; workers also open their common group, for which all have come."""
    session.init(config)
    group_of(global_process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a process set, on all workers; return whether it was known.

    Calls under way in it are given up.
    """
    sets = _sets.setdefault(current(), _Sets())
    number = process_set.process_set_id
    if number is None or sets.added.get(number) is not process_set:
        return False
    del sets.added[number]
    process_set.process_set_id = None
    group = sets.groups.pop(number, None)
    if group is not None:
        group.close()
    return True


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return once all members have called it."""
    if process_set is global_process_set:
        arrays.barrier()
    else:
        group_of(process_set).barrier()


def key_among(process_set: ProcessSet, kind: str, name: str | None) -> str:
    """Return the members' key of a call of a kind; without a name, it has the number of such calls."""
    return named(kind, name, f"process set {process_set.process_set_id}")[0]


def group_of(process_set: ProcessSet) -> "Group":
    """Return the group by which the members communicate.

    Raises:
        ConfigError: the set was not added.
        ValueError: this worker is no member.
    """
    sets = _sets.setdefault(current(), _Sets())
    number = process_set.process_set_id
    if number is None or (number and sets.added.get(number) is not process_set):
        raise ConfigError(
            f"rank {current().client_index}: {process_set} is not known; call add_process_set() with it on all ranks"
        )
    process_set.rank()
    group = sets.groups.get(number)
    if group is None:
        from coarse.torch.groups.group import Group  # which needs MPI; an import must not start it

        group = sets.groups[number] = Group(members_of(process_set), f"process set {number}")
    return group
