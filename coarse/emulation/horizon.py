# Pure: no MPI, threads, clock or environment.
"""Horizon of an emulated run: the time up to which the fabric may go, since nothing earlier can come.

Emulated time is virtual. Each endpoint publishes two words in mapped memory: a bound, the least emulated time at which
it may still submit anything, and how many deliveries it has taken in. The fabric goes to the least bound and no
further, so nothing comes too late, however busy the machine is, and no process waits for a clock.

[Note: words] An endpoint that listens may react to a delivery that it has not taken in yet, at the time of that
delivery: then the first such time is its bound, if that is less. The sign of the bound tells whether it listens, so
that both change at once. It submits first, then writes the bound, then the count; the fabric reads the count, then the
bound, then the submissions. x86-64 keeps stores in order, and loads. So a bound that the fabric sees is one before
which all has been read, and a delivery that counts as taken in has a bound that its taker knew of.

[Note: strictly before] A transfer begins or ends only before the horizon, and not at it: another may begin at the same
time, and the order of the two must not depend on the order of reading. A record without bytes is handed on at the
horizon too, since the process that holds it may wait for the answer.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence

Word = tuple[int, float]
"""Words of an endpoint: (deliveries that it has taken in, its signed bound), read in this order."""


def signed(bound_s: float, *, listens: bool) -> float:
    """Return a bound as its word has it: see [Note: words]."""
    return math.copysign(bound_s, -1.0 if listens else 1.0)


class Horizon:
    """Bounds of all endpoints, as the fabric knows them."""

    def __init__(self, num_endpoints: int, read: Callable[[int], Word]) -> None:
        """Begin with all endpoints; `read` returns an endpoint's words."""
        self._read = read
        self._untaken: list[deque[float]] = [deque() for _ in range(num_endpoints)]
        """Times of deliveries that an endpoint has not taken in, by endpoint."""
        self._num_taken = [0] * num_endpoints
        self._listens = [True] * num_endpoints
        self._alive = set(range(num_endpoints))
        self._away: dict[int, Word] = {}
        """Words of endpoints that time goes on without, until they change."""

    def least_s(self) -> float:
        """Read all words; return the least time at which a submission may still come, infinity if none may."""
        return min(map(self._bound_s, self._alive), default=math.inf)

    def holders(self) -> list[int]:
        """Return the endpoints that time waits for, as they were read last, and that do not listen."""
        least_s = self.least_s()
        return [each for each in self._alive if not self._listens[each] and self._bound_s(each) == least_s < math.inf]

    def go_on_without(self, endpoint: int) -> None:
        """Wait no more for an endpoint, until it says something."""
        self._away[endpoint] = self._read(endpoint)

    def delivered(self, endpoint: int, due_s: float) -> bool:
        """Note a delivery, no earlier than those before it; return whether its endpoint may react at once."""
        self._untaken[endpoint].append(due_s)
        return self._listens[endpoint]

    def remove(self, endpoints: Sequence[int]) -> None:
        """Forget endpoints that have left or died."""
        self._alive.difference_update(endpoints)

    def _bound_s(self, endpoint: int) -> float:
        words = num_taken, word = self._read(endpoint)
        if self._away.get(endpoint) == words:
            return math.inf
        self._away.pop(endpoint, None)
        untaken = self._untaken[endpoint]
        while self._num_taken[endpoint] < num_taken:
            self._num_taken[endpoint] += 1
            untaken.popleft()
        listens = self._listens[endpoint] = math.copysign(1.0, word) < 0
        bound_s = abs(word)
        return min(bound_s, untaken[0]) if listens and untaken else bound_s
