# Pure: no MPI, threads, clock or environment.
"""Links of a machine as a fluid: the end of each transfer, given that it shares links with others.

[Note: tight links] A link on which even the caps of its transfers together stay within the capacity holds no transfer
back. Only the others are tight, and a change spreads along tight links alone: transfers that meet on none keep their
rates, and one that has its path to itself costs no more than a walk along it. Nor does a link that another covers (see
ways.py), of which no account is kept.

[Note: due times] A streaming transfer is stored as its rate and the time at which it ends at that rate. A new rate
moves that time. Of transfers that tight links join, only the first to end stands in the queue of events: its end gives
new rates, and so new times, to all of them. Old entries are known by their numbers and skipped.

[Note: late begin] The live fabric learns of a transfer only when it wakes up. The bytes that the transfer would have
moved by then are credited at its first rate, and its end counts from when it should have begun.
"""

import math
from collections.abc import Iterable, Sequence
from heapq import heappop as _pop
from heapq import heappush as _push

from coarse.errors import ConfigError
from coarse.hardware.fair_share import FairShares, shares_of
from coarse.hardware.links import Link
from coarse.hardware.ways import Draw, Way, Ways, units


class _Flow:
    """Transfer under way."""

    __slots__ = ("draw", "due_s", "entry", "nbytes", "piece", "rate", "ready_s", "transfer", "way")

    def __init__(self, transfer: int, way: Way, nbytes: int, piece: int, ready_s: float) -> None:
        self.transfer = transfer
        self.way = way
        self.nbytes = nbytes
        self.piece = piece  # bytes that go at once
        self.ready_s = ready_s  # when its latencies are over; from here on its bytes count
        self.draw: Draw  # once it streams
        self.rate = 0.0 if nbytes and way.path else math.inf  # bytes per second; 0 until it streams, if ever it does
        self.due_s = ready_s  # see [Note: due times]
        self.entry = 0  # the number of its valid entry in the queue, if it has one


class Fabric:
    """Links and the transfers on them, on a clock that `advance` moves; a link's id is its index."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = tuple(links)
        self._ways = Ways(self._links)
        self._users: list[dict[_Flow, None]] = [{} for _ in self._links]  # in the order in which they came
        self._room = [units(each.bytes_per_s) for each in self._links]  # capacity that the users' caps leave
        self._tight = [False] * len(self._links)  # see [Note: tight links]
        self._under_way: set[int] = set()
        self._now_s = 0.0
        self._num_entries = 0
        self._events: list[tuple[float, int, _Flow | None]] = []  # (when, entry, flow); None: a link's rate
        self._rate_changes: dict[int, tuple[int, float]] = {}  # entry -> (link, bytes per second)
        self._fair_shares = shares_of(tuple(self._ways.capacity.values()))
        self._changed: dict[int, None] = {}  # links that are shared anew before time moves on
        self._fresh: list[_Flow] = []  # flows that have no rate until then

    @property
    def now_s(self) -> float:
        """Time up to which everything has happened."""
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
        path, begun_s = tuple(path), at_s if begun_s is None else begun_s
        if transfer in self._under_way or nbytes < 0 or not (begun_s <= at_s and self._now_s <= at_s < math.inf):
            raise ValueError(self._refusal(transfer, nbytes, at_s, begun_s))
        way = self._ways.way(path)
        self._under_way.add(transfer)
        flow = _Flow(transfer, way, nbytes, nbytes if piece_bytes is None else piece_bytes, begun_s + way.latency_s)
        if flow.ready_s <= at_s == self._now_s and not flow.rate:
            self._stream(flow)
        else:
            self._post(max(at_s, flow.ready_s), flow)

    def latency_s(self, path: tuple[int, ...]) -> float:
        """Return the seconds before the first byte of a transfer moves: the start-up of each of its links."""
        return self._ways.way(path).latency_s

    def next_s(self) -> float | None:
        """Return the time when the next latency or transfer ends; never before `now_s`."""
        when_s = self._next_s()
        return when_s if when_s < math.inf else None

    def advance(self, to_s: float) -> list[tuple[float, int]]:
        """Let time pass; return (when it ended, transfer) for all that end, in order of time.

        One that began late may have ended before `now_s`.
        """
        if not self._now_s <= to_s < math.inf:
            raise ValueError(f"the fabric can advance from {self._now_s} s only forward, got {to_s} s")
        ended: list[tuple[float, int]] = []
        while ended_now := self.next_ended(to_s):
            ended += ended_now
        self._now_s = to_s
        ended.sort()
        return ended

    def next_ended(self, until_s: float) -> list[tuple[float, int]]:
        """Return (when it ended, transfer) of all that end when the next does, if by `until_s`.

        Time stands there then.
        """
        while (next_s := self._next_s()) <= until_s and next_s < math.inf:
            self._now_s = next_s
            if ended := self._happen(next_s):
                ended.sort()
                return ended
        return []

    def set_rate(self, link: int, bytes_per_s: float, at_s: float) -> None:
        """Give a link another rate from `at_s` on; its times by size change in proportion."""
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
        _push(self._events, (at_s, self._num_entries, None))

    def bytes_moved(self, link: int) -> int | float:
        """Return the bytes that have passed a link until `now_s`; a path that takes it twice counts twice."""
        if self._changed or self._fresh:
            self._share()
        done = sum(way.nbytes_done * way.path.count(link) for way in self._ways.over(link))
        under_way = sum(
            flow.way.path.count(link) * (flow.nbytes - flow.rate * max(0.0, flow.due_s - self._now_s))
            for flow in self._users[self._ways.cover_of(link)]
            if link in flow.way.path
        )
        return done + under_way

    def _next_s(self) -> float:
        """Return the time of the next event, all flows having rates by then; infinity if there is none."""
        if self._changed or self._fresh:
            self._share()
        events = self._events
        while events:
            when_s, entry, flow = events[0]
            if flow is None or flow.entry == entry:
                return when_s
            _pop(events)
        return math.inf

    def _happen(self, now_s: float) -> list[tuple[float, int]]:
        """Handle all events of one instant, and return the transfers that ended by them."""
        events, ended = self._events, []
        new_rates: list[tuple[int, float]] = []
        while events and events[0][0] == now_s:
            _, entry, flow = _pop(events)
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
        return ended

    def _post(self, when_s: float, flow: _Flow) -> None:
        self._num_entries = flow.entry = entry = self._num_entries + 1
        _push(self._events, (when_s, entry, flow))

    def _stream(self, flow: _Flow) -> None:
        """Let a flow, whose latencies are over, take part in sharing."""
        self._fresh.append(flow)
        all_users, room, changed = self._users, self._room, self._changed
        draw = flow.draw = flow.way.draws.get(flow.piece) or self._new_draw(flow)
        for link, drawn in draw.drawn:
            users = all_users[link]
            if users:
                changed[link] = None
            users[flow] = None
            room[link] -= drawn

    def _end(self, flow: _Flow) -> None:
        self._under_way.remove(flow.transfer)
        flow.way.nbytes_done += flow.nbytes
        if flow.rate < math.inf:
            all_users, room, tight = self._users, self._room, self._tight
            for link, drawn in flow.draw.drawn:
                del all_users[link][flow]
                room[link] += drawn
                if tight[link]:
                    self._changed[link] = None

    def _change_rate(self, link: int, bytes_per_s: float) -> None:
        self._room[link] += units(bytes_per_s) - units(self._ways.capacity[link])
        self._uncover(self._ways.change_rate(link, bytes_per_s))
        self._fair_shares = FairShares(self._ways.capacity)
        self._changed[link] = None
        for flow in list(self._users[link]):
            for each, drawn in flow.draw.drawn:
                self._room[each] += drawn
            self._stream(flow)

    def _new_draw(self, flow: _Flow) -> Draw:
        draw, uncovered = self._ways.new_draw(flow.way, flow.piece)
        self._uncover(uncovered)
        return draw

    def _uncover(self, uncovered: Iterable[tuple[int, int]]) -> None:
        """Share, from now on, links that their covers' users have passed too."""
        for link, cover in uncovered:
            self._changed[link] = None
            for flow in self._users[cover]:
                if link in flow.draw.every:
                    flow.draw.keep(self._ways.is_covered)
                    self._users[link][flow] = None
                    self._room[link] -= units(flow.draw.cap * flow.draw.every[link])

    def _share(self) -> None:
        """Give new rates to the fresh flows, and to those that a changed link held back or does so now."""
        all_users, room, tight, seeds = self._users, self._room, self._tight, []
        if self._changed:
            changed, self._changed = self._changed, {}
            for link in changed:
                is_tight = room[link] < 0 and len(all_users[link]) > 1
                if is_tight or tight[link]:
                    seeds.append(link)
                tight[link] = is_tight
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            for flow in fresh:
                for link in flow.draw.costs:
                    if tight[link]:
                        break
                else:
                    self._set_rates([flow], ((0, flow.draw.cap),))
        if seeds:
            seen: set[_Flow] = set()
            for seed in seeds:
                for flow in all_users[seed]:
                    if flow not in seen:
                        flows, links = self._joined(flow)
                        seen.update(flows)
                        self._set_rates(flows, self._fair_shares.rates([each.draw for each in flows], links))

    def _joined(self, first: _Flow) -> tuple[list[_Flow], list[int]]:
        """Return the flows that tight links join to one, itself first, and these links."""
        tight = self._tight
        links = [link for link in first.draw.costs if tight[link]]
        flows, known, queued = [first], {first}, set(links)
        for reached in links:  # which grows
            for flow in self._users[reached]:
                if flow not in known:
                    known.add(flow)
                    flows.append(flow)
                    for link in flow.draw.costs:
                        if tight[link] and link not in queued:
                            queued.add(link)
                            links.append(link)
        return flows, links

    def _set_rates(self, flows: Sequence[_Flow], rates: Iterable[tuple[int, float]]) -> None:
        """Give joined flows their rates (position, bytes per second) from now on.

        See [Note: due times] and [Note: late begin].
        """
        now_s, first_s, first = self._now_s, math.inf, []
        for position, rate in rates:
            flow = flows[position]
            due_s, before = flow.due_s, flow.rate
            if not before:
                due_s = flow.due_s = flow.ready_s + flow.nbytes / rate
                flow.rate = rate
            elif before != rate and due_s > now_s:
                due_s = flow.due_s = now_s + (due_s - now_s) * (before / rate)
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

    def _refusal(self, transfer: int, nbytes: int, at_s: float, begun_s: float) -> str:
        if transfer in self._under_way:
            return f"transfer {transfer} is under way already; give each transfer its own number until it ends"
        return (
            f"transfer {transfer}: {nbytes} bytes at {at_s} s, begun at {begun_s} s, with the fabric at "
            f"{self._now_s} s; wanted bytes >= 0 and begun <= at, at >= the fabric's time"
        )
