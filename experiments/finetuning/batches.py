"""Which rows each worker reads when: the same global batches, whatever the number of workers and passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """A global batch of `batch` rows, cut into `passes` parts of a step and each of those over `workers`."""

    num_rows: int
    batch: int
    passes: int
    workers: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("num_rows", "batch", "passes", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"BatchPlan.{name} must be at least 1, got {getattr(self, name)}")
        if self.batch % (self.passes * self.workers):
            raise ValueError(
                f"a batch of {self.batch} rows can't be cut into {self.passes} equal parts for each of "
                f"{self.workers} workers; choose a multiple of {self.passes * self.workers} for --batch"
            )

    def rows(self, step: int) -> np.ndarray:
        """(batch,) int64: the rows of a step's global batch; each row comes once in every epoch."""
        places = np.arange(step * self.batch, (step + 1) * self.batch)
        epochs = {int(epoch): self._order(int(epoch)) for epoch in np.unique(places // self.num_rows)}
        return np.array([epochs[int(place) // self.num_rows][int(place) % self.num_rows] for place in places])

    def cut(self, step: int, part: int, worker: int) -> np.ndarray:
        """(batch / passes / workers,) int64: what a worker reads in one part of a step."""
        cuts = self.rows(step).reshape(self.passes, self.workers, -1)
        return np.array(cuts[part, worker])

    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(self.num_rows)
