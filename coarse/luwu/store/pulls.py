# Pure: no MPI, threads, clock or environment.
"""Order of pulls, and reads of their chunks: ahead, where pulls can be foreseen."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from coarse.luwu.store.instructions import Instruction, Offer, Place, ReadPulled


class PullOrder:
    """Forecast of pulls: the next one is the one that followed the same pull in the step before."""

    def __init__(self) -> None:
        self._known: list[int] = []
        """Units of the last step that had any, in order."""
        self._seen: list[int] = []
        """Units of this step."""
        self._at: int | None = 0
        """Place in `_known` of the pull that is expected; None where none is."""

    def on_pull(self, unit: int) -> None:
        """Note that a unit is pulled."""
        self._seen.append(unit)
        at, known = self._at, self._known
        if at is None or at >= len(known) or known[at] != unit:
            at = known.index(unit) if unit in known else None
        self._at = None if at is None else at + 1

    def on_step(self) -> None:
        """Note that a step has ended; the next pull begins the next one."""
        if self._seen:
            self._known, self._seen = self._seen, []
        self._at = 0

    def expected(self, ahead: int = 0) -> int | None:
        """Return the unit of the pull after `ahead` others.

        None: it cannot be foreseen, or comes after this step.
        """
        if self._at is None or self._at + ahead >= len(self._known):
            return None
        return self._known[self._at + ahead]

    def in_order(self, units: list[int]) -> list[int]:
        """Return these units in order, first those that a step pulls first."""
        rank = {unit: place for place, unit in reversed(list(enumerate(self._known)))}
        return sorted(units, key=lambda unit: (rank.get(unit, len(self._known)), unit))


@dataclass
class _Pull:
    unit: int
    first: int
    """Number of its first chunk in the window."""
    num_chunks: int
    is_wanted: bool
    num_begun: int = 0
    read: set[int] = field(default_factory=set)
    """Chunks that were read and not offered."""


class PullWindow:
    """Stream of chunks through a window, numbered on and on, read in order, and given back in order.

    Pulls that are foreseen have the next numbers until another comes in their place.
    """

    def __init__(
        self, num_slots: int, num_chunks: Callable[[int], int], place: Callable[[int, int], Place | None]
    ) -> None:
        """Start with an empty window.

        `num_chunks` gives a unit's number of chunks. `place` gives the place of a unit's chunk, None while it cannot be
        read.
        """
        self.num_slots = num_slots
        self.order = PullOrder()
        self._num_chunks = num_chunks
        self._place = place
        self._pulls: deque[_Pull] = deque()
        """Pulls of which something is to be read or offered; foreseen ones last."""
        self._end = 0
        """Number behind the last one given to a pull."""
        self._freed = 0
        self._tickets: dict[int, tuple[int, int]] = {}
        """Ticket of a read that runs -> (number, chunk), or a number of -1 where it is not wanted any more."""
        self._busy: dict[int, int] = {}
        """Slot that a read fills -> the ticket."""
        self._num_tickets = 0

    def on_pull(self, unit: int) -> list[Instruction]:
        """Begin a pull of a unit by all workers, after those before it."""
        self.order.on_pull(unit)
        foreseen = next((pull for pull in self._pulls if not pull.is_wanted), None)
        if foreseen is not None and foreseen.unit == unit:
            foreseen.is_wanted = True
            done: list[Instruction] = [self._offer(foreseen, chunk) for chunk in sorted(foreseen.read)]
            foreseen.read.clear()
            self._tidy()
            return done + self.go_on()
        self.drop_foreseen()
        self._append(unit, is_wanted=True)
        return self.go_on()

    def on_step(self) -> list[Instruction]:
        """Note that a step has ended, and that chunks read ahead are old."""
        self.drop_foreseen()
        self.order.on_step()
        return self.go_on()

    def drop_foreseen(self) -> None:
        """Drop all that was read ahead: it has changed."""
        dropped = [pull for pull in self._pulls if not pull.is_wanted]
        if not dropped:
            return
        first = self._end = dropped[0].first
        self._pulls = deque(pull for pull in self._pulls if pull.is_wanted)
        for ticket, (number, _) in self._tickets.items():
            if number >= first:
                self._tickets[ticket] = -1, -1

    def on_read(self, read: ReadPulled) -> list[Instruction]:
        """Note that a chunk was read."""
        number, chunk = self._tickets.pop(read.ticket)
        del self._busy[read.number % self.num_slots]
        done: list[Instruction] = []
        if number >= 0:
            pull = next(one for one in self._pulls if one.first <= number < one.first + one.num_chunks)
            pull.read.add(chunk)
            if pull.is_wanted:
                pull.read.discard(chunk)
                done.append(self._offer(pull, chunk))
                self._tidy()
        return done + self.go_on()

    def on_freed(self, end: int) -> list[Instruction]:
        """Free the chunks of numbers below `end`, which all workers have."""
        self._freed = max(self._freed, end)
        return self.go_on()

    def go_on(self) -> list[Instruction]:
        """Return reads that may begin: some chunk may be readable now that was not."""
        done: list[Instruction] = []
        foreseen = 0
        for pull in self._pulls:
            foreseen += not pull.is_wanted
            if not self._read_on(pull, done):
                return done
        while (unit := self.order.expected(foreseen)) is not None and self._has_room(self._end):
            if self._place(unit, 0) is None:
                return done
            foreseen += 1
            if not self._read_on(self._append(unit, is_wanted=False), done):
                return done
        return done

    def _append(self, unit: int, *, is_wanted: bool) -> _Pull:
        pull = _Pull(unit, self._end, self._num_chunks(unit), is_wanted)
        self._end += pull.num_chunks
        self._pulls.append(pull)
        return pull

    def _has_room(self, number: int) -> bool:
        return number < self._freed + self.num_slots and number % self.num_slots not in self._busy

    def _read_on(self, pull: _Pull, done: list[Instruction]) -> bool:
        """Begin the reads of a pull that can be made; return whether that is all of it."""
        while pull.num_begun < pull.num_chunks:
            chunk = pull.num_begun
            number = pull.first + chunk
            place = self._place(pull.unit, chunk) if self._has_room(number) else None
            if place is None:
                return False
            pull.num_begun += 1
            ticket, self._num_tickets = self._num_tickets, self._num_tickets + 1
            self._tickets[ticket] = number, chunk
            self._busy[number % self.num_slots] = ticket
            done.append(ReadPulled(number, pull.unit, chunk, place, ticket))
        return True

    def _offer(self, pull: _Pull, chunk: int) -> Offer:
        return Offer(pull.first + chunk, pull.unit, chunk)

    def _tidy(self) -> None:
        """Forget pulls of which all was offered."""
        while self._pulls and self._pulls[0].is_wanted and self._is_over(self._pulls[0]):
            self._pulls.popleft()

    def _is_over(self, pull: _Pull) -> bool:
        running = any(
            pull.first <= number < pull.first + pull.num_chunks for number, _ in self._tickets.values()
        )
        return pull.num_begun == pull.num_chunks and not pull.read and not running
