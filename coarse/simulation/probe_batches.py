# Pure: no MPI, threads, clock or environment.
"""Transfers that are measured together: the parts of a profile, or of a check between two iterations."""

from collections.abc import Sequence
from typing import NamedTuple

from coarse.client.probing import ProbeCopy
from coarse.hardware.fabric import Fabric
from coarse.hardware.links import Link
from coarse.simulation.sites import Path, Site

Port = tuple[str, int]


class ProbeTransfer(NamedTuple):
    """Transfer on one of a site's ways, from a source to a target."""

    way: str
    """Way of the transfer: "push", "pull", "devices" or "workers"."""
    source: int
    """Index of a client or a device, according to the way."""
    target: int

    def path(self, site: Site) -> Path:
        """Return the links that it takes."""
        match self.way:
            case "push":
                return site.push[self.source, self.target]
            case "pull":
                return site.pull[self.target, self.source]
            case "devices":
                return site.between_devices[self.source, self.target]
        return site.between_workers[self.source, self.target]

    @property
    def port(self) -> Port:
        """Port that sends: a probe batch has at most one transfer of each port."""
        match self.way:
            case "pull":
                return "pull", self.target
            case "devices":
                return "ring", self.source
        return self.way, self.source


class ProbeBatch(NamedTuple):
    """Transfers of `nbytes` each that begin together; each one's seconds are measured."""

    sends: tuple[ProbeTransfer, ...]
    nbytes: int
    owner: int
    """Index of the worker that measures it."""


def batch_of_probe(client: int, probe: ProbeCopy) -> ProbeBatch:
    """Return a client's probe of a device: push and pull at once, as in training.

    The latency takes the push alone.
    """
    push, pull = ProbeTransfer("push", client, probe.device), ProbeTransfer("pull", probe.device, client)
    return ProbeBatch((push, pull) if probe.nbytes else (push,), probe.nbytes, client)


def probe_batch_s(site: Site, probe_batch: ProbeBatch) -> tuple[float, ...]:
    """Return the seconds of each transfer by the model of the links."""
    return ends_s(site.links, [send.path(site) for send in probe_batch.sends], probe_batch.nbytes)


def ends_s(links: Sequence[Link], paths: Sequence[Path], nbytes: int) -> tuple[float, ...]:
    """Return the seconds after which each of several transfers of `nbytes`, begun together, has ended."""
    fabric = Fabric(links)
    for number, path in enumerate(paths):
        fabric.start(number, path, nbytes, 0.0)
    ends: dict[int, float] = {}
    while (next_s := fabric.next_s()) is not None:
        ends.update((number, end_s) for end_s, number in fabric.advance(next_s))
    return tuple(ends[number] for number in range(len(paths)))
