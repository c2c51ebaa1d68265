"""Links over the time of a picture: their bytes over time, and the busiest of each kind."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from coarse.cli.report.timeline import Capacity, LinkUse, Window
from coarse.simulation.job import Job
from coarse.simulation.recording import Transfer

NUM_BINS = 240
"""Equal parts of the timeline in which a link's use is counted."""
_TRAFFIC = {
    "push": "pushes",
    "fetch": "sync cores' fetches",
    "ring": "ring of sync cores",
    "workers": "ring of workers",
    "pull": "pulls",
}
"""Reader's words for the bytes of a port."""


def links_of(job: Job, transfers: Sequence[Transfer], window: Window) -> list[LinkUse]:
    """Return all links that carried bytes, the busiest first; a transfer's bytes are spread over its time."""
    bin_s = max((window.end_s - window.begin_s) / NUM_BINS, 1e-30)
    per_link: dict[int, np.ndarray] = {}  # link -> (NUM_BINS,) bytes in each bin
    senders: dict[int, set[str]] = {}
    for each in transfers:
        first, nbytes = _in_bins(each, window, bin_s)
        for link in each.path:
            if link not in per_link:
                per_link[link] = np.zeros(NUM_BINS)
            per_link[link][first : first + len(nbytes)] += nbytes
            senders.setdefault(link, set()).add(each.port[0])
    uses = [
        LinkUse(
            name=job.site.links[link].name,
            kind=kind_of(job.site.links[link].name),
            carries=tuple(text for does, text in _TRAFFIC.items() if does in senders[link]),
            capacity=tuple(_capacity(job, link, window)),
            nbytes=float(in_bins.sum()),
            bytes_per_s=tuple(float(rate) for rate in in_bins / bin_s),
        )
        for link, in_bins in per_link.items()
    ]
    return sorted((use for use in uses if use.nbytes > 0), key=lambda use: (-use.nbytes, use.name))


def kind_of(link: str) -> str:
    """Return a link's kind: its name without numbers. Both directions of a wire are of one kind."""
    user, _, role = re.sub(r"^node\d+ ", "", link).rpartition(" ")
    what = "NVLink" if " - " in user else re.sub(r"\d+", "", user)
    return f"{what} up or down" if role in ("up", "down") else f"{what} {role}"


def busiest_of_each_kind(uses: Sequence[LinkUse], duration_s: float) -> tuple[LinkUse, ...]:
    """Return the most used link of each kind and capacity, with the names of the others."""
    groups: dict[tuple[str, tuple[Capacity, ...]], list[LinkUse]] = {}
    for use in sorted(uses, key=lambda use: (-use.share(duration_s), use.name)):
        groups.setdefault((use.kind, use.capacity), []).append(use)
    return tuple(replace(first, others=tuple(other.name for other in rest)) for first, *rest in groups.values())


def _in_bins(transfer: Transfer, window: Window, bin_s: float) -> tuple[int, np.ndarray]:
    """Return (first bin, bytes in it and in those after it) of a transfer."""
    edges = np.linspace(window.begin_s, window.end_s, NUM_BINS + 1)
    first = max(0, min(NUM_BINS - 1, int((transfer.begin_s - window.begin_s) / bin_s)))
    last = max(first, min(NUM_BINS - 1, int((transfer.end_s - window.begin_s) / bin_s)))
    took_s = max(transfer.end_s - transfer.begin_s, 1e-30)
    passed = np.clip((edges[first : last + 2] - transfer.begin_s) / took_s, 0.0, 1.0)
    return first, np.diff(passed) * transfer.nbytes


def _capacity(job: Job, link: int, window: Window) -> Iterator[Capacity]:
    """Yield a link's capacity at the window's begin, and after each change within it."""
    changes = [change for change in job.rate_changes if change.link == link and change.at_s < window.end_s]
    before = [change.bytes_per_s for change in changes if change.at_s <= window.begin_s]
    yield Capacity(0.0, before[-1] if before else job.site.links[link].bytes_per_s)
    for change in changes[len(before) :]:
        yield Capacity(change.at_s - window.begin_s, change.bytes_per_s)
