"""Programs in which a fixed part of every optimizer's buckets goes to the memory devices, whatever is measured."""

from collections.abc import Sequence

import numpy as np

from coarse.protocol.records import Descriptor
from coarse.strategy.rounds import Round, first_to_devices

SPLITS = {"none": 0.0, "half": 0.5, "all": 1.0}
"""Share of the buckets, rounded up, that the devices have."""
_forced = ""


def forced() -> str:
    """The name that `force_split` was called with; "" where the split is measured."""
    return _forced


def force_split(name: str = "") -> None:
    """From now on new optimizers split by one of SPLITS, from their first step on; to be called after init().

    Nothing changes without a name, or where the mode or a lone worker leaves nothing to split.
    """
    global _forced
    _forced = name
    if not name:
        return
    from coarse.parallel.data import (
        dual,
        split_chooser,  # they start MPI
    )

    class ForcedChooser:
        """Decides always the same."""

        timer = None
        dual_sync = None

        def __init__(self, runtime, stream, prefix, gpu=None, strategy=None) -> None:
            stream.open()

        def next_round(self, buckets: Sequence[Descriptor]) -> Round:
            return first_to_devices(-int(-len(buckets) * SPLITS[name] // 1), len(buckets))

        def restart(self) -> None:
            pass

        def close(self, num_buckets: int) -> None:
            pass

    class ForcedReducer(dual.DualReducer):
        """Splits in the first round too."""

        def memory_of(self, descriptor: Descriptor, num_exact: int = 0) -> np.ndarray:
            array = super().memory_of(descriptor)
            buckets = [one for one, *_ in self._buckets]
            self._round.begin(self._chooser.next_round(buckets))
            return array

    split_chooser.SplitChooser = ForcedChooser
    dual.DualReducer = ForcedReducer
