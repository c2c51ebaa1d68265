"""Carries out every script of tests/support/scripts.py on real ranks: `scripted.py FOLDER live|emulated COLLECTIVE`.

Each worker writes what came of its steps. In the emulated job links are modelled; bytes are real in both.
"""

import json
import sys
from pathlib import Path

import numpy as np

from coarse.client.client import Client
from coarse.client.handle import Handle
from coarse.emulation.runtime import EmulatedRank
from coarse.errors import CoarseError
from coarse.protocol.partition import PartitionTable, RankPlace, Role
from coarse.runtime import Runtime
from coarse.simulation.job import Job
from coarse.strategy.rounds import Round
from tests.support.scripts import (
    CAPACITY_BYTES,
    NUM_CLIENTS,
    NUM_DEVICES,
    PARTITION_BYTES,
    SCRIPTS,
    Deregister,
    Join,
    Outcome,
    Profile,
    Push,
    Script,
    of_sum,
    placement,
    site_of,
    table,
)

LIMIT_S = 60.0


class Scripted:
    """A worker that takes its steps of one script."""

    def __init__(self, runtime: Runtime, script: Script) -> None:
        self._runtime = runtime
        self._client: Client = runtime.require_client()
        self._script = script
        self._open: dict[str, tuple[int, Handle, np.ndarray]] = {}
        self.outcomes: list[Outcome] = []

    def run(self) -> list[Outcome]:
        for step in self._script.steps[self._client.protocol.client]:
            match step:
                case Push():
                    self._take(step.name)
                    self._push(step)
                    continue
                case Deregister(name):
                    self._take_all()
                    self._client.deregister(f"{self._script.name}/{name}")
                case Join():
                    self._take_all()
                    self._client.join()
                case Profile():
                    self._take_all()
                    self._runtime.profile()
        self._take_all()
        return self.outcomes

    def _push(self, push: Push) -> None:
        number, out = len(self.outcomes), np.empty_like(push.array)
        self.outcomes.append(())
        try:
            handle = self._client.push_pull(push.descriptor(self._script.name), push.array, out, present=push.present)
        except CoarseError as error:
            self.outcomes[number] = "error", type(error).__name__
        else:
            self._open[push.name] = number, handle, out

    def _take(self, name: str) -> None:
        if name not in self._open:
            return
        number, handle, out = self._open.pop(name)
        try:
            handle.wait(LIMIT_S)
        except CoarseError as error:
            self.outcomes[number] = "error", type(error).__name__
        else:
            self.outcomes[number] = of_sum(out, handle.present)

    def _take_all(self) -> None:
        for name in list(self._open):
            self._take(name)


def opened(kind: str, collective: str) -> tuple[Runtime, EmulatedRank | None]:
    """This rank's runtime."""
    settings = {
        "device_capacity_bytes": CAPACITY_BYTES,
        "collective": collective,
        "num_sync_groups": 2,
        "stall_timeout_s": LIMIT_S,
    }
    if kind == "live":
        routing = {"policy": "fixed", "threshold_bytes": 0, "partition_bytes": PARTITION_BYTES}
        partition = f"{NUM_CLIENTS}:{NUM_DEVICES}"
        return Runtime({**settings, "partition": partition, "routing": routing}), None
    place = placement(collective)
    roles = [Role.WORKER] * NUM_CLIENTS + [Role.MEMORY_DEVICE] * NUM_DEVICES
    places = tuple(RankPlace(rank=rank, roles=role, node="node0", switch="one") for rank, role in enumerate(roles))
    job = Job(
        site=site_of(place),
        placement=place,
        facts=tuple(table(place, client) for client in range(NUM_CLIENTS)),
        gradients=(),
        forward_s=0.0,
        backward_s=0.0,
        round=Round(by=()),
    )
    partition_table = PartitionTable(places=places, local_proxies=place.local_proxies)
    rank = EmulatedRank(job, partition_table, settings=settings)
    return rank.runtime, rank


def main() -> None:
    """Run all scripts on one job."""
    folder, kind, collective = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    runtime, rank = opened(kind, collective)
    runtime.start()
    if not runtime.is_device_only:
        found = {script.name: Scripted(runtime, script).run() for script in SCRIPTS}
        (folder / f"{runtime.client_index}.json").write_text(json.dumps(found))
    runtime.close()
    if rank is not None:
        rank.take_report()


if __name__ == "__main__":
    main()
