# Pure: no MPI, threads, clock or environment.
"""Where the workers and memory devices of a job stand, and which links each way between them uses."""

from collections.abc import Mapping
from dataclasses import dataclass

from coarse.hardware.links import Link

Path = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A machine as a job sees it; paths are tuples of positions in `links`."""

    links: tuple[Link, ...]
    push: Mapping[tuple[int, int], Path]
    """(client, device) -> links of a push."""
    pull: Mapping[tuple[int, int], Path]
    """(client, device) -> links of a pull."""
    between_devices: Mapping[tuple[int, int], Path]
    """(device, device) -> links of a sync core's sends."""
    between_workers: Mapping[tuple[int, int], Path]
    """(worker, worker) -> links of the workers' own ring."""
    adder_bytes_per_s: float
    """Of every device's near-memory adders: bytes read and added."""

    def __post_init__(self) -> None:
        known = range(len(self.links))
        ways = (self.push, self.pull, self.between_devices, self.between_workers)
        for way in ways:
            for ends, path in way.items():
                if any(link not in known for link in path):
                    raise ValueError(f"the path {path} of {ends} names links that are not among {len(self.links)}")
