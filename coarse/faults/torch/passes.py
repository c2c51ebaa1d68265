"""Epochs, passes over data and steps of a script: its position at a commit, and the way back to it.

[Note: generators and data] A pass draws its order, and the seed of a loader's workers, when its iterator is made;
batches and the model draw in between. So the generators of the pass's beginning are kept and set again before the
iterator is made, the batches of earlier steps are passed over, and then the generators of the commit are set. (Setting
them before that, or keeping those of the commit alone, gives other batches: accelerate#2016, transformers#46628.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader

from coarse.errors import CheckpointError, ConfigError
from coarse.faults.torch.parts import generator_state, set_generator
from coarse.plain import Plain
from coarse.protocol.clock import WallClock
from coarse.torch.own_state import generators, set_generators

Item = TypeVar("Item")
_TOLD_FROM_S = 1.0
"""Seconds from which on a message tells that batches were read again."""


class Passes:
    """Position of a script in its loops; one pass at a time."""

    def __init__(self, tell: Callable[[str], None], *, is_kept: bool) -> None:
        """Start at the script's beginning.

        `is_kept`: commits are kept, so that loaders must be such as can be resumed.
        """
        self._tell = tell
        self._is_kept = is_kept
        self._epoch: int | None = None
        self._num_passes = 0
        """Number of passes of this epoch that have begun; all of the script's, where it has no epochs of ours."""
        self._pass: _Pass[Any] | None = None
        self._back: dict[str, Plain] | None = None
        """Position of the script at the resumed commit, until it is there again."""

    # --- at a commit

    def take(self) -> Plain:
        """Return the script's position, with its generators."""
        current = self._pass
        return {
            "epoch": self._epoch,
            "passes": self._num_passes,
            "pass": None if current is None else current.take(),
            "generators": generators(),
        }

    def put(self, kept: Plain) -> None:
        """Go on from a position: set generators now, and again where the loops come to it."""
        self._back = kept
        set_generators(kept["generators"])

    @property
    def batch(self) -> int | None:
        """Number of the batch at hand within its pass, from 0; None outside of one."""
        return None if self._pass is None else self._pass.taken - 1

    # --- loops

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yield the numbers of epochs, those that were done before the commit left out."""
        back, first = self._back, 0
        if back is not None and back["epoch"] is not None:
            first = back["epoch"] + (back["pass"] is None)  # a commit outside of a pass ends its epoch
        for epoch in range(first, num_epochs):
            self._epoch, self._num_passes = epoch, 0
            if back is not None and back["pass"] is None:
                self._arrive(back)
            back = None
            yield epoch
        self._epoch = None
        if self._back is not None and self._back["pass"] is None:
            self._arrive(self._back)

    def batches(self, source: Iterable[Item]) -> Iterator[Item]:
        """Yield a loader's batches, those before the commit left out."""
        if self._pass is not None:
            raise ConfigError(
                "Resumable: a pass has begun within another one; give batches() and steps() to the loop that commits, "
                "and loop over other data directly"
            )
        number, self._num_passes = self._num_passes, self._num_passes + 1
        back = self._back
        if back is not None and self._is_before(back, number):
            return
        if self._is_kept:
            _require_may_go_on(source)
        is_back = back is not None and back["pass"] is not None and number == back["passes"] - 1
        if not is_back and back is not None:
            self._arrive(back)
        self._pass = _Pass(source, back["pass"] if is_back and back is not None else None, self._tell)
        if is_back and back is not None:
            self._arrive(back)
            self._pass.set_own(back["pass"])
        try:
            yield from self._pass
        finally:
            self._pass = None

    def steps(self, num_steps: int) -> Iterator[int]:
        """Yield the numbers of steps, those before the commit left out."""
        return self.batches(range(num_steps))

    def _is_before(self, back: dict[str, Plain], number: int) -> bool:
        """Return whether a pass had ended when the commit was made."""
        done = back["passes"] - (back["pass"] is not None)
        return bool(self._epoch == back["epoch"] and number < done)

    def _arrive(self, back: dict[str, Plain]) -> None:
        """Set the generators of the commit, as the script has come back to its position."""
        set_generators(back["generators"])
        self._back = None


class _Pass(Generic[Item]):
    """Pass over a source: its batches, and the state that coming to the same one again needs."""

    def __init__(self, source: Iterable[Item], kept: Plain, tell: Callable[[str], None]) -> None:
        self._source = source
        self._own = _own_generators(source)
        self._is_stateful = _is_stateful(source)
        self.taken = 0
        if kept is None:
            self._begin: Plain = None if isinstance(source, range) else self._drawing()
            self._iterator = iter(source)
            return
        self.taken = kept["taken"]
        self._begin = kept["begin"]
        if self._begin is not None:
            set_generators(self._begin["generators"])
            self._set_own(self._begin["own"])
        if self._is_stateful:
            source.load_state_dict(kept["loader"])  # type: ignore[attr-defined]
            self._iterator = iter(source)
        else:
            self._iterator = _passed_over(source, self.taken, tell)

    def __iter__(self) -> Iterator[Item]:
        for item in self._iterator:
            self.taken += 1
            yield item

    def take(self) -> Plain:
        """Return the position in the pass."""
        return {
            "taken": self.taken,
            "begin": self._begin,
            "own": [generator_state(each) for each in self._own],
            "loader": self._source.state_dict() if self._is_stateful else None,  # type: ignore[attr-defined]
        }

    def set_own(self, kept: Plain) -> None:
        """Restore the loader's own generators as at the commit."""
        self._set_own(kept["own"])

    def _drawing(self) -> Plain:
        return {"generators": generators(), "own": [generator_state(each) for each in self._own]}

    def _set_own(self, states: list[Plain]) -> None:
        for generator, state in zip(self._own, states, strict=True):
            set_generator(generator, state)


def _own_generators(source: object) -> list[torch.Generator | np.random.Generator]:
    """Return the generators that a loader and its samplers draw from, each once."""
    batch_sampler = getattr(source, "batch_sampler", None)
    holders = (source, getattr(source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = {
        id(generator): generator
        for holder in holders
        if isinstance(generator := getattr(holder, "generator", None), torch.Generator | np.random.Generator)
    }
    return list(found.values())


def _is_stateful(source: object) -> bool:
    return callable(getattr(source, "state_dict", None)) and callable(getattr(source, "load_state_dict", None))


def _require_may_go_on(source: object) -> None:
    """Raise ConfigError for a loader whose workers' generators cannot be restored."""
    if getattr(source, "persistent_workers", False) and not _is_stateful(source):
        raise ConfigError(
            "Resumable: a DataLoader with persistent_workers=True keeps generators of its workers from pass to pass, "
            "and nothing tells where they are; leave that out, or take a loader with state_dict(), such as torchdata's "
            "StatefulDataLoader"
        )


def _passed_over(source: Iterable[Item], count: int, tell: Callable[[str], None]) -> Iterator[Item]:
    """Return an iterator that has yielded `count` batches.

    Raises:
        CheckpointError: there are fewer.
    """
    if isinstance(source, range):
        return iter(source[count:])  # type: ignore[arg-type]
    iterator, clock = iter(source), WallClock()
    begin_s = clock.now_s()
    skips = _reads_by_index(source, iterator)
    for number in range(count):
        try:
            if skips:
                iterator._next_index()  # type: ignore[attr-defined]
                iterator._num_yielded += 1  # type: ignore[attr-defined]
            else:
                next(iterator)
        except StopIteration:
            raise CheckpointError(
                f"Resumable: {count} batches of this pass were used before the commit, and the loader ends after "
                f"{number}; go on with the data that the run began with"
            ) from None
    if (took_s := clock.now_s() - begin_s) >= _TOLD_FROM_S:
        tell(f"{count} batches of before the commit were {'passed over' if skips else 'read again'} in {took_s:.1f} s")
    return iterator


def _reads_by_index(source: object, iterator: object) -> bool:
    """Return whether batches can be passed over unread.

    They can with torch's own loader, no workers, and a dataset of indices.
    """
    loading = sys.modules.get("torch.utils.data.dataloader")
    single = getattr(loading, "_SingleProcessDataLoaderIter", None)
    if type(source) is not DataLoader or single is None or type(iterator) is not single:
        return False
    return not isinstance(source.dataset, torch.utils.data.IterableDataset) and hasattr(iterator, "_next_index")
