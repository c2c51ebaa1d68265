"""Trace of the transfers and computes of a sharded model's units, to show which hide others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from torch import nn
from torch.utils.hooks import RemovableHandle

import coarse
from coarse.errors import ConfigError
from coarse.protocol.clock import WallClock
from coarse.protocol.trace import Trace
from coarse.strategy.sharding import Gather, Keeps, Source
from coarse.torch.fsdp.unit import units_of

if TYPE_CHECKING:
    from coarse.collectives.progress import Pending

_COMPUTE, _TRANSFERS = 0, 1
_CATEGORIES = {
    Source.ALL: "gather between nodes",
    Source.HOST: "host load",
    Source.NODE: "gather on the node",
}


class TransferRecorder:
    """Recorder of a model's units from its making to `close`; a `with` closes it."""

    def __init__(self, model: nn.Module) -> None:
        """Start recording `model`, which is sharded by `fully_shard`.

        Raises:
            ConfigError: it is not sharded.
        """
        self._units = units_of(model)
        if not self._units:
            raise ConfigError(f"this {type(model).__name__} is not sharded; call fully_shard first", key="model")
        self.trace = Trace(coarse.rank(), f"worker {coarse.rank()}")
        """Trace of the records so far."""
        self.trace.lane(_COMPUTE, "compute")
        self.trace.lane(_TRANSFERS, "transfers")
        self._clock = WallClock()
        self._free_s = 0.0
        """Seconds at which the last transfer ended: they run one after the other."""
        self._handles: list[RemovableHandle] = []
        for unit in self._units:
            unit.recorder = self
            self._watch_compute(unit.name, unit.fsdp.module)

    def __enter__(self) -> TransferRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Record nothing more."""
        for unit in self._units:
            unit.recorder = None
        for handle in self._handles:
            handle.remove()

    def write(self, path: Path | str) -> None:
        """Write the trace as a file for Perfetto.

        Files of several workers can be merged (coarse.protocol.trace.merge).
        """
        self.trace.write(path)

    def now_s(self) -> float:
        """Return the seconds on the clock of the trace."""
        return self._clock.now_s()

    def on_gather(self, what: str, how: Gather, pending: Pending) -> None:
        """Record a gather that was submitted."""
        submitted_s = self.now_s()
        category = _CATEGORIES[how.source] + (", kept" if how.keep is not Keeps.NOTHING else "")

        def ended(over: Pending) -> None:
            if over.failure is None:
                self._transferred(what, category, submitted_s)

        pending.when_over(ended)

    def on_reduced(self, what: str, submitted_s: float) -> None:
        """Record a reduce-scatter that has ended."""
        self._transferred(what, "reduce-scatter", submitted_s)

    def _transferred(self, what: str, category: str, submitted_s: float) -> None:
        end_s = self.now_s()
        self.trace.span(what, category, max(submitted_s, self._free_s), end_s, lane=_TRANSFERS, submitted_s=submitted_s)
        self._free_s = end_s

    def _watch_compute(self, name: str, module: nn.Module) -> None:
        """Record the computes of a unit: after it was gathered, and until it may be freed."""
        begin_s: list[float] = []

        def begins(*_: object) -> None:
            begin_s.append(self.now_s())

        def ends(phase: str) -> Callable[..., None]:
            def end(*_: object) -> None:
                if begin_s:
                    self.trace.span(f"{phase} of {name}", "compute", begin_s.pop(), self.now_s(), lane=_COMPUTE)

            return end

        self._handles += [
            module.register_forward_pre_hook(begins),
            module.register_forward_hook(ends("forward"), prepend=True),
            module.register_full_backward_pre_hook(begins),
            module.register_full_backward_hook(ends("backward")),
        ]
