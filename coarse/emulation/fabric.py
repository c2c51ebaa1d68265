"""All links of a machine as a fluid: when each transfer ends, given that it shares links with others.

[Note: cost of a size] A link that small transfers keep at half its rate is busy all the same. So a transfer
takes of a link's capacity what its rate is to the most that its size could draw: several small ones at once get
no more through than one after the other. Links are shared by the time for which transfers keep them busy.

[Note: tight links] A link on which even the caps of its transfers together stay within the capacity holds
nobody back. Only the others are tight, and a change spreads along tight links alone: transfers that meet on
none keep their rates, and one that has its path to itself costs no more than a walk along it.

[Note: due times] A streaming transfer is stored as its rate and the time at which it ends at that rate. A new
rate moves that time. Of transfers that tight links join, only the first to end stands in the queue of events:
its end gives new rates, and so new times, to all of them. Old entries are known by their numbers and skipped.

[Note: late begin] The live fabric learns of a transfer only when it wakes up. What the transfer would have
moved by then is credited at its first rate, and its end counts from when it should have begun.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coarse.emulation.fair_share import max_min_rates
from coarse.emulation.links import Link
from coarse.errors import ConfigError

MAX_REMEMBERED_DRAWS = 1 << 16


class _Draw(NamedTuple):
    """What a size takes of a path: see [Note: cost of a size]."""

    cap: float
    """Bytes per second, alone."""
    costs: dict[int, float]
    """Link -> what a byte per second takes of it; at least 1, twice as much where the path takes it twice."""
    weight: float
    """How fast its rate rises beside others'."""


class _Flow:
    """A transfer under way."""

    __slots__ = ("draw", "due_s", "entry", "nbytes", "path", "piece", "rate", "ready_s", "transfer")

    def __init__(
        self, transfer: int, path: tuple[int, ...], nbytes: int, ready_s: float, piece_bytes: int | None
    ) -> None:
        self.transfer = transfer
        self.path = path
        self.nbytes = nbytes
        self.piece = nbytes if piece_bytes is None else piece_bytes  # bytes that go at once
        self.ready_s = ready_s  # when its latencies are over; from here on its bytes count
        self.draw: _Draw  # once it streams
        self.rate = 0.0  # bytes per second; 0 until it streams, infinite if it never does
        self.due_s = ready_s  # see [Note: due times]
        self.entry = 0  # the number of its valid entry in the queue, if it has one


class Fabric:
    """Links and the transfers on them, on a clock that `advance` moves; a link's id is its index."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = tuple(links)
        self._capacity = {link: each.bytes_per_s for link, each in enumerate(self._links)}
        self._users: list[dict[_Flow, float]] = [{} for _ in self._links]  # flow -> the most it draws of the link
        self._tight = [False] * len(self._links)  # see [Note: tight links]
        self._nbytes_done = [0] * len(self._links)
        self._flows: dict[int, _Flow] = {}
        self._now_s = 0.0
        self._num_entries = 0
        self._events: list[tuple[float, int, _Flow | None]] = []  # (when, entry, flow); None: a link's rate
        self._rate_changes: dict[int, tuple[int, float]] = {}  # entry -> (link, bytes per second)
        self._latencies_s: dict[tuple[int, ...], float] = {}
        self._draws: dict[tuple[tuple[int, ...], int], _Draw] = {}
        self._changed: dict[int, None] = {}  # links that are shared anew before time moves on
        self._fresh: list[_Flow] = []  # flows that have no rate until then

    @property
    def now_s(self) -> float:
        """Up to when everything has happened."""
        return self._now_s

    def start(
        self,
        transfer: int,
        path: Sequence[int],
        nbytes: int,
        at_s: float,
        *,
        begun_s: float | None = None,
        piece_bytes: int | None = None,
    ) -> None:
        """Begin a transfer at `at_s`: the latencies of its path, then its bytes at its share of the links.

        With `begun_s` it should have begun earlier: see [Note: late begin]. With `piece_bytes` it goes in
        pieces of that size, so that it draws no more than one of them does, and costs as much.
        """
        path = tuple(path)
        begun_s = at_s if begun_s is None else begun_s
        in_time = self._now_s <= at_s < math.inf and begun_s <= at_s
        if transfer in self._flows or nbytes < 0 or not in_time:
            raise ValueError(self._refusal(transfer, nbytes, at_s, begun_s))
        latency_s = self.latency_s(path)
        flow = self._flows[transfer] = _Flow(transfer, path, nbytes, begun_s + latency_s, piece_bytes)
        flow.rate = 0.0 if path and nbytes else math.inf
        if flow.ready_s <= at_s == self._now_s and not flow.rate:
            self._stream(flow)
        else:
            self._post(max(at_s, flow.ready_s), flow)

    def latency_s(self, path: tuple[int, ...]) -> float:
        """Seconds before the first byte of a transfer moves: the start-up of each of its links."""
        latency_s = self._latencies_s.get(path)
        if latency_s is None:
            for link in path:
                if not 0 <= link < len(self._links):
                    raise ValueError(f"path {path}: links are 0..{len(self._links) - 1}, got {link}")
            latency_s = self._latencies_s[path] = sum(self._links[link].latency_s for link in path)
        return latency_s

    def next_s(self) -> float | None:
        """When the next latency or transfer ends; never before `now_s`."""
        if self._changed:
            self._share()
        events = self._events
        while events:
            when_s, entry, flow = events[0]
            if flow is None or flow.entry == entry:
                return when_s
            heapq.heappop(events)
        return None

    def advance(self, to_s: float) -> list[tuple[float, int]]:
        """Let time pass; (when it ended, transfer) for all that end, in order of time.

        One that began late may have ended before `now_s`.
        """
        if not self._now_s <= to_s < math.inf:
            raise ValueError(f"the fabric can advance from {self._now_s} s only forward, got {to_s} s")
        ended: list[tuple[float, int]] = []
        events, now_s = self._events, -math.inf
        while now_s < to_s and (next_s := self.next_s()) is not None and next_s <= to_s:
            now_s = self._now_s = next_s
            new_rates: list[tuple[int, float]] = []
            while events and events[0][0] == now_s:
                _, entry, flow = heapq.heappop(events)
                if flow is None:
                    new_rates.append(self._rate_changes.pop(entry))
                elif flow.entry != entry:
                    continue
                elif flow.rate:
                    ended.append((flow.due_s, flow.transfer))
                    self._end(flow)
                else:
                    self._stream(flow)
            for link, bytes_per_s in new_rates:  # last, since what ends now has no use for them
                self._change_rate(link, bytes_per_s)
        self._now_s = to_s
        ended.sort()
        return ended

    def set_rate(self, link: int, bytes_per_s: float, at_s: float) -> None:
        """From `at_s` on a link has another rate, and its times by size change in proportion."""
        if not self._now_s <= at_s < math.inf:
            raise ValueError(f"a link can change its rate from {self._now_s} s on, got {at_s} s")
        if not (math.isfinite(bytes_per_s) and bytes_per_s > 0):
            raise ConfigError(
                f"link {self._links[link].name!r}: the rate must be above 0 bytes per second and finite, got "
                f"{bytes_per_s}; for a link that is almost dead give a small rate",
                key="bytes_per_s",
            )
        self._num_entries += 1
        self._rate_changes[self._num_entries] = link, bytes_per_s
        heapq.heappush(self._events, (at_s, self._num_entries, None))

    def bytes_moved(self, link: int) -> float:
        """Bytes that have passed a link until `now_s`; a path that takes it twice counts twice."""
        if self._changed:
            self._share()
        under_way = sum(
            flow.path.count(link) * (flow.nbytes - flow.rate * max(0.0, flow.due_s - self._now_s))
            for flow in self._users[link]
        )
        return self._nbytes_done[link] + under_way

    def _post(self, when_s: float, flow: _Flow) -> None:
        self._num_entries = flow.entry = self._num_entries + 1
        heapq.heappush(self._events, (when_s, flow.entry, flow))

    def _stream(self, flow: _Flow) -> None:
        """The latencies of a flow are over: it takes part in sharing."""
        self._fresh.append(flow)
        draw = flow.draw = self._draw(flow.path, flow.piece)
        for link, cost in draw.costs.items():
            self._users[link][flow] = draw.cap * cost
            self._changed[link] = None

    def _end(self, flow: _Flow) -> None:
        del self._flows[flow.transfer]
        for link in flow.path:
            self._nbytes_done[link] += flow.nbytes
            if self._users[link].pop(flow, None) is not None:
                self._changed[link] = None

    def _change_rate(self, link: int, bytes_per_s: float) -> None:
        self._capacity[link] = bytes_per_s
        self._draws.clear()
        self._changed[link] = None
        for flow in list(self._users[link]):
            self._stream(flow)

    def _share(self) -> None:
        """Give new rates to the fresh flows, and to those that a changed link held back or does so now."""
        changed, fresh, tight = self._changed, self._fresh, self._tight
        self._changed, self._fresh, seeds = {}, [], []
        for link in changed:
            users = self._users[link]
            is_tight = len(users) > 1 and sum(users.values()) > self._capacity[link]
            if is_tight or tight[link]:
                seeds.append(link)
            tight[link] = is_tight
        for flow in fresh:
            for link in flow.path:
                if tight[link]:
                    break
            else:
                self._set_rates({flow: flow.draw.cap})
        seen: set[_Flow] = set()
        for seed in seeds:
            for flow in self._users[seed]:
                if flow not in seen:
                    costs = self._joined(flow)
                    seen.update(costs)
                    caps = {each: each.draw.cap for each in costs}
                    weights = {each: each.draw.weight for each in costs}
                    self._set_rates(max_min_rates(costs, caps, weights, self._capacity))

    def _joined(self, first: _Flow) -> dict[_Flow, dict[int, float]]:
        """The flows that tight links join to one, itself among them, with the cost of each on tight links."""
        costs = {first: self._tight_costs(first)}
        reached = list(costs[first])
        queued = set(reached)
        for link in reached:
            for flow in self._users[link]:
                if flow not in costs:
                    costs[flow] = tight_costs = self._tight_costs(flow)
                    for each in tight_costs:
                        if each not in queued:
                            queued.add(each)
                            reached.append(each)
        return costs

    def _tight_costs(self, flow: _Flow) -> dict[int, float]:
        tight = self._tight
        return {link: cost for link, cost in flow.draw.costs.items() if tight[link]}

    def _set_rates(self, rates: Mapping[_Flow, float]) -> None:
        """Give joined flows their rates from now on: see [Note: due times] and [Note: late begin]."""
        now_s, first_s, first = self._now_s, math.inf, []
        for flow, rate in rates.items():
            due_s = flow.due_s
            if not flow.rate:
                due_s = flow.due_s = flow.ready_s + flow.nbytes / rate
                flow.rate = rate
            elif due_s > now_s and flow.rate != rate:
                due_s = flow.due_s = now_s + (due_s - now_s) * (flow.rate / rate)
                flow.rate = rate
            if due_s < now_s:
                due_s = now_s
            flow.entry = 0
            if due_s < first_s:
                first_s, first = due_s, [flow]
            elif due_s == first_s:
                first.append(flow)
        for flow in first:
            self._post(first_s, flow)

    def _draw(self, path: tuple[int, ...], nbytes: int) -> _Draw:
        """What transfers that go in pieces of `nbytes` take of a path."""
        draw = self._draws.get((path, nbytes))
        if draw is None:
            links = self._links
            once = {link: links[link].bytes_per_s / links[link].rate_bytes_per_s(nbytes) for link in path}
            costs = {link: cost * path.count(link) for link, cost in once.items()}
            cap = min(self._capacity[link] / cost for link, cost in costs.items())
            if len(self._draws) >= MAX_REMEMBERED_DRAWS:
                self._draws.clear()
            draw = self._draws[path, nbytes] = _Draw(cap, costs, 1 / max(once.values()))
        return draw

    def _refusal(self, transfer: int, nbytes: int, at_s: float, begun_s: float) -> str:
        if transfer in self._flows:
            return f"transfer {transfer} is under way already; give each transfer its own number until it ends"
        return (
            f"transfer {transfer}: {nbytes} bytes at {at_s} s, begun at {begun_s} s, with the fabric at "
            f"{self._now_s} s; wanted bytes >= 0 and begun <= at, at >= the fabric's time"
        )
