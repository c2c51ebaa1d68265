# Pure: no MPI, threads, clock or environment.
"""Standard input of the fabric process, as JSON: links, paths, processes and changes."""

import json
from dataclasses import dataclass

from coarse.hardware.degradation import RateChange
from coarse.hardware.links import Link
from coarse.simulation.sites import Path, Site

_WAYS = ("push", "pull", "between_devices", "between_workers", "load", "store")


@dataclass(frozen=True, kw_only=True)
class FabricOrder:
    """Facts that the fabric process needs beside the mapped mailboxes."""

    site: Site
    run: str
    process_ids: tuple[int, ...]
    """Process of every endpoint."""
    worker_nodes: tuple[int, ...]
    """Nodes of the modelled machine on which the workers are, which are the first endpoints."""
    rate_changes: tuple[RateChange, ...] = ()
    """Changes of rates at seconds of the run, in order."""


def order_text(order: FabricOrder) -> str:
    """Return an order as JSON."""
    site = order.site
    links = [(link.name, link.latency_s, link.bytes_per_s, link.table) for link in site.links]
    ways = {way: [[*ends, list(path)] for ends, path in getattr(site, way).items()] for way in _WAYS}
    return json.dumps(
        {
            "links": links,
            "ways": ways,
            "hosts": [site.to_host, site.from_host],
            "adder_bytes_per_s": site.adder_bytes_per_s,
            "run": order.run,
            "process_ids": order.process_ids,
            "worker_nodes": order.worker_nodes,
            "rate_changes": order.rate_changes,
        }
    )


def parse_order(text: str) -> FabricOrder:
    """Return the order that `order_text` wrote."""
    found = json.loads(text)
    links = tuple(
        Link(
            name=name,
            latency_s=latency_s,
            bytes_per_s=bytes_per_s,
            table=tuple((nbytes, seconds) for nbytes, seconds in table),
        )
        for name, latency_s, bytes_per_s, table in found["links"]
    )
    ways: dict[str, dict[tuple[int, int], Path]] = {
        way: {(a, b): tuple(path) for a, b, path in found["ways"][way]} for way in _WAYS
    }
    site = Site(
        links=links,
        push=ways["push"],
        pull=ways["pull"],
        between_devices=ways["between_devices"],
        between_workers=ways["between_workers"],
        load=ways["load"],
        store=ways["store"],
        adder_bytes_per_s=found["adder_bytes_per_s"],
        to_host=tuple(map(tuple, found["hosts"][0])),
        from_host=tuple(map(tuple, found["hosts"][1])),
    )
    return FabricOrder(
        site=site,
        run=found["run"],
        process_ids=tuple(found["process_ids"]),
        worker_nodes=tuple(found["worker_nodes"]),
        rate_changes=tuple(RateChange(*change) for change in found["rate_changes"]),
    )
