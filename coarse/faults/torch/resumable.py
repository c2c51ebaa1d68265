"""Resumable: a training script whose state outlives its processes, so that a restart has equal bits.

state = ct.Resumable(model=model, optimizer=optimizer, scheduler=scheduler)     # last before the loop
for epoch in state.epochs(10):
    for batch in state.batches(loader):
        ...
        optimizer.step()
        state.commit()
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

import torch

from coarse.errors import ConfigError, StorageError
from coarse.faults.keeping import Framework, Keeping, keeping_of_job
from coarse.faults.memory import state_memory
from coarse.faults.parts import POSITION, VALUES, Part, PlainPart, values_part
from coarse.faults.progress import Progress, tell, tell_for_all
from coarse.faults.torch.carried import NAME as CARRIED
from coarse.faults.torch.carried import Carried, carrier_in, require_kept, without_carried
from coarse.faults.torch.parts import part_of, require_sums_by_order, shared_by_all
from coarse.faults.torch.passes import Passes
from coarse.session import current
from coarse.torch.groups.objects import TENSORS, allgather_object

_Batch = TypeVar("_Batch")
_REMEDY: Final = (
    "broadcast parameters before the first step (ct.broadcast_parameters, ct.broadcast_optimizer_state)"
)


def kernels() -> str:
    """Return the name of torch's kernels here."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__} with {torch.get_num_threads()} threads and {capability}"


FRAMEWORK: Final = Framework(tensors=TENSORS, kernels=kernels, remedy=_REMEDY)


class Resumable:
    """Training script's state that outlives its processes.

    All workers make one, last before the training loop, with the same names; see the module's docstring. Where the job
    is started again over committed states, parts have those values once this returns, and the loops go on behind the
    batch of that commit. Generators of torch, CUDA, numpy and random are taken unasked. Gradients are not kept. Beside
    an optimizer of `model_in_network`, all else is committed with its steps, and its `storage` has the step from which
    the job goes on.

    Args:
        every: commit at each k-th call of `commit`; the choice changes no bits.
        other_kernels: go on although torch, its threads or the processor are others than those of the commit, so that
            bits may differ.
        parts: by names of your choice modules, optimizers, generators of torch and numpy, and objects that have
            `state_dict()` and `load_state_dict()`.

    Raises:
        TypeError: a part of which nothing can be kept.
        CheckpointError: the committed states are of another model; the error has the first difference.
        StorageError: no version is whole with all workers; a folder of another script or number of workers.
        ConfigError: settings by which two runs differ in bits; an optimizer of some workers.
    """

    def __init__(self, *, every: int = 1, other_kernels: bool = False, **parts: object) -> None:
        runtime = current()
        worker = runtime.client_index
        assert worker is not None
        if every < 1:
            raise ConfigError(f"Resumable: every must be at least 1, got {every}")
        self._worker, self._every = worker, every
        self.values: dict[str, Any] = {}
        """Plain values, tensors and arrays of the script's own, which are committed too."""
        alike, shared = shared_by_all(parts)
        carrier = carrier_in(parts)
        own = without_carried(parts, carrier)
        made: dict[str, Part] = {name: part_of(name, what, alike, shared) for name, what in own.items()}
        optimizers = [what for what in parts.values() if isinstance(what, torch.optim.Optimizer)]
        self._counts_steps, self._has_stepped, self._steps = bool(optimizers), False, 0
        for optimizer in optimizers:
            optimizer.register_step_post_hook(self._note_step)
        self._calls, self._has_told = 0, False
        told_by_one = tell_for_all(worker)
        self._progress = Progress(told_by_one)
        memory = state_memory(runtime.config, os.environ, worker, runtime.placement.num_clients)
        self._passes = Passes(told_by_one, is_kept=memory is not None or carrier is not None)
        self._keeping: Keeping | None = None
        self._carried: Carried | None = None
        made[POSITION] = PlainPart("the loader's state", self._passes.take, self._passes.put, TENSORS)
        made[VALUES] = values_part(self.values, TENSORS)
        if carrier is not None:
            made = self._carry(made, carrier[1])
        if memory is None:
            return
        if carrier is not None:
            require_kept(carrier, os.environ)
        is_ddp = any(isinstance(what, torch.nn.parallel.DistributedDataParallel) for what in parts.values())
        require_sums_by_order(parts)
        self._keeping = keeping_of_job(
            runtime, made, memory, allgather_object, FRAMEWORK, tell, every=every, other_kernels=other_kernels,
            is_ddp=is_ddp,
        )  # fmt: skip
        calls, steps = self._keeping.go_on()
        if carrier is None:
            self._calls, self._steps = calls, steps
        elif calls and not carrier[1].steps:
            raise StorageError(
                f"{calls} steps were committed, and the storage of {carrier[0]!r} has none of them; begin anew by "
                "another job, or give it the folders that it had"
            )
        if self._calls:
            self._progress.on_restored(self._calls)

    def _carry(self, made: dict[str, Part], carrier: Any) -> dict[str, Part]:  # noqa: ANN401
        """Have an optimizer commit parts with its own steps, and go on from there.

        Return the parts that are left to be kept: none, as only the script's progress is kept, for the launcher.
        """
        if self._every > 1:
            raise ConfigError(
                f"Resumable: {type(carrier).__name__} says by commit_every which steps are committed; leave out every"
            )
        self._carried = Carried(made, carrier)
        carrier.carry(**{CARRIED: self._carried})
        self._calls = self._steps = self._carried.calls
        return {}

    @property
    def is_kept(self) -> bool:
        """True if commits are kept."""
        return self._keeping is not None or self._carried is not None

    # --- loops

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yield the numbers of epochs; those that ended before the commit are left out."""
        return self._passes.epochs(num_epochs)

    def batches(self, loader: Iterable[_Batch]) -> Iterator[_Batch]:
        """Yield a loader's batches; those before the commit are left out.

        A loader that has `state_dict()` says itself where it was. Batches of torch's DataLoader without workers, over a
        dataset of indices, are passed over and not read; others are read and dropped.

        Raises:
            ConfigError: a pass within a pass; persistent_workers without `state_dict()`.
            CheckpointError: the loader has fewer batches than were used before the commit.
        """
        return self._passes.batches(loader)

    def steps(self, num_steps: int) -> Iterator[int]:
        """Yield the numbers of steps, from 0; those before the commit are left out."""
        return self._passes.steps(num_steps)

    @property
    def batch(self) -> int | None:
        """Number of the batch at hand within its pass, from 0, also after a restart; None outside of a pass."""
        return self._passes.batch

    # --- commits

    def _note_step(self, *_: object) -> None:
        self._has_stepped = True
        self._steps += 1

    def commit(self) -> bool:
        """Keep the state as it is now, behind an optimizer's step; return whether it was kept.

        It is not where nothing keeps it (rank 0 says so once), amid an accumulation (no optimizer has stepped since the
        last commit), and but for each k-th call of `every=k`. Before version k is written, all workers have recorded
        version k - 1.

        Raises:
            CapacityError: no room, at the first commit.
            TypeError: something is no plain value; the error has its name.
            MismatchError: workers commit different steps, or a tensor that should be equal on all differs.
            StallError: some workers have not committed the version before; it may be called again.
        """
        if not self.is_kept:
            if not self._has_told and self._worker == 0:
                tell("nothing keeps what commit() stores; start by coarse run --restarts N, or set [faults]")
            self._has_told = True
            return False
        if self._counts_steps and not self._has_stepped:
            return False
        is_due = (self._calls + 1) % self._every == 0
        if self._carried is not None:
            self._carried.take(self._calls + 1)
        if is_due and self._keeping is not None:
            self._keeping.commit(self._calls + 1, self._steps if self._counts_steps else self._calls + 1)
        self._calls += 1
        self._has_stepped = False
        if is_due:
            self._progress.on_commit(self._calls)
        return is_due
