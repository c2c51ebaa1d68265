# Pure: no MPI, threads, clock or environment.
"""The optimizer node that writes commit records: it waits for all nodes and all workers' own states."""

import json
from collections.abc import Mapping

from coarse.errors import UnsupportedError
from coarse.luwu.store.commit import Commit, UnitVersion


class Commits:
    """State of the next commit; workers and nodes agree on which commit it is by counting them."""

    def __init__(self, run: str, num_units: int, num_nodes: int, num_workers: int, sequence: int) -> None:
        """Start with `sequence` as that of the first record to be written."""
        self._run = run
        self._num_units = num_units
        self._num_nodes = num_nodes
        self._num_workers = num_workers
        self._sequence = sequence
        self._versions: dict[int, dict[int, UnitVersion]] = {}
        """Prepared node -> its units' versions."""
        self._states: dict[int, dict[int, bytes]] = {}
        """Number of a commit -> worker -> its state."""
        self._number = 0
        """Number of the commit that comes next."""
        self._step = -1
        """Step that nodes are prepared for."""

    def on_state(self, worker: int, number: int, state: bytes) -> Commit | None:
        """Take a worker's own state for a commit; return the next record, if nothing else is lacking."""
        self._states.setdefault(number, {})[worker] = state
        return self._complete()

    def on_prepared(self, node: int, step: int, versions: Mapping[int, UnitVersion]) -> Commit | None:
        """Note that a node has a step on its disks; return the record, if nothing else is lacking."""
        self._step = step
        self._versions[node] = dict(versions)
        return self._complete()

    def missing(self) -> str:
        """Return text for people on what the record lacks; empty where none is to be written."""
        if not self._versions:
            return ""
        has = self._states.get(self._number, {})
        ranks = [worker for worker in range(self._num_workers) if worker not in has]
        nodes = [node for node in range(self._num_nodes) if node not in self._versions]
        return f"the commit of step {self._step} waits for ranks {ranks} and optimizer nodes {nodes}"

    def _complete(self) -> Commit | None:
        states = self._states.get(self._number, {})
        if len(self._versions) < self._num_nodes or len(states) < self._num_workers:
            return None
        known = {unit: version for versions in self._versions.values() for unit, version in versions.items()}
        if unwritten := [unit for unit in range(self._num_units) if unit not in known]:
            raise UnsupportedError(f"units {unwritten} have no values, and step {self._step} is to be committed")
        commit = Commit(
            sequence=self._sequence,
            run=self._run,
            step=self._step,
            units=tuple(known[unit] for unit in range(self._num_units)),
            workers=tuple(states[worker] for worker in range(self._num_workers)),
        )
        self._sequence += 1
        self._versions.clear()
        del self._states[self._number]
        self._number += 1
        return commit


def versions_to_json(versions: Mapping[int, UnitVersion]) -> str:
    """Return versions as text for the wire."""
    return json.dumps([[unit, *version] for unit, version in versions.items()])


def versions_from_json(text: str) -> dict[int, UnitVersion]:
    """Return the versions of a text that `versions_to_json` made."""
    return {
        unit: UnitVersion(slot, version, tuple(steps)) for unit, slot, version, steps in json.loads(text)
    }
