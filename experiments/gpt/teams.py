"""How the workers of a run agree on gradients: one class per way, and nothing else differs between runs.

[Note: what a user changes] CoarseTeam.join holds the lines that a user of PyTorch adds to a training script: broadcast
the parameters, wrap the optimizer. The modes of coarse differ by the configuration given to `init` alone.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from coarse.transport.launcher import LauncherKind, innermost_launcher
from experiments.gpt.network import OFFLOADED, SWITCHED, settings_of
from experiments.start import join_job

COARSE_MODES = ("dense", "allreduce", "coarse")
SHARDED_MODES = ("fsdp", "hybrid", "zeropp", "fcdp", "odc")
MODES = (*COARSE_MODES, *SHARDED_MODES, "luwu", *OFFLOADED, *SWITCHED, "ddp", "none", "single")
POLICIES = ("auto", "paper", "devices")


class Loop(Protocol):
    """The steps of a run, of which those before a restart are left out; `commit` keeps the state behind one."""

    values: dict[str, Any]
    """What the run has found so far."""

    def steps(self, num_steps: int) -> Iterator[int]:
        """Yield the numbers of the steps to make."""

    def commit(self) -> bool:
        """Keep the state behind a step, where something keeps it."""


class PlainLoop:
    """A loop that keeps nothing."""

    def __init__(self, first_step: int) -> None:
        self.values: dict[str, Any] = {}
        self._first_step = first_step

    def state_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values.update(state)

    def steps(self, num_steps: int) -> Iterator[int]:
        return iter(range(self._first_step, num_steps))

    def commit(self) -> bool:
        return False


class Team(Protocol):
    """One worker's view of the group it trains in."""

    rank: int
    size: int
    synchronises: bool
    """Whether a step of this team has communication that a twin without it shows to be exposed."""
    first_step: int
    """The step that training begins with, once the team is joined: above 0 where a run goes on."""

    def join(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """The model to call and the optimizer whose learning rate and gradients count; `update` steps it."""

    def synchronize(self) -> None:
        """Wait until the gradients are the mean over workers."""

    def update(self) -> None:
        """Apply gradients that `synchronize` has completed."""

    def mean(self, values: Tensor, name: str) -> Tensor:
        """The mean over workers of (n,) float64; a name always comes with the same n."""

    def loop(self) -> Loop:
        """The loop of steps, once the team is joined."""

    def whole(self) -> AbstractContextManager[object]:
        """Within, the model has all its parameters' values, on all workers, who enter it together."""

    def bytes_moved(self) -> int | None:
        """Bytes that this worker's traffic has moved so far, None where nobody counts them."""

    def dual_sync(self) -> dict[str, Any] | None:
        """What was measured and decided about who synchronises which gradients, None where nothing was."""

    def leave(self) -> None:
        """End what the team opened."""


class AloneTeam:
    """Workers that never talk: the single process, and the unsynchronised baseline with several."""

    synchronises = False
    first_step = 0

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def join(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        self._optimizer = optimizer
        return model, optimizer

    def synchronize(self) -> None:
        return None

    def update(self) -> None:
        self._optimizer.step()

    def mean(self, values: Tensor, name: str) -> Tensor:
        return values

    def loop(self) -> Loop:
        return PlainLoop(self.first_step)

    def whole(self) -> AbstractContextManager[object]:
        return nullcontext()

    def bytes_moved(self) -> int | None:
        return 0

    def dual_sync(self) -> dict[str, Any] | None:
        return None

    def leave(self) -> None:
        return None


class DdpTeam(AloneTeam):
    """PyTorch's DistributedDataParallel over Gloo; its communication lies inside backward."""

    synchronises = True

    def __init__(self, rank: int, size: int, environ: Mapping[str, str]) -> None:
        super().__init__(rank, size)
        address = f"tcp://{environ.get('MASTER_ADDR', '127.0.0.1')}:{rendezvous_port(environ)}"
        torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=size)

    def join(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        self._optimizer = optimizer
        return nn.parallel.DistributedDataParallel(model), optimizer

    def mean(self, values: Tensor, name: str) -> Tensor:
        total = values.clone()
        torch.distributed.all_reduce(total)
        return total / self.size

    def bytes_moved(self) -> int | None:
        return None

    def leave(self) -> None:
        torch.distributed.destroy_process_group()


class CoarseTeam:
    """Workers over coarse; the mode, and its policy, are the only things that differ between its modes."""

    synchronises = True
    first_step = 0

    def __init__(self, mode: str, policy: str | None) -> None:
        import coarse.torch as ct  # here, so that the other teams run without it

        self._ct = ct
        join_job(mode=mode, policy=policy)  # a memory device serves in here and never returns
        self.rank = ct.rank()
        self.size = ct.size()

    def join(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        self._ct.broadcast_parameters(model.named_parameters(), root_rank=0)
        self._model = model
        self._optimizer = self._ct.DistributedOptimizer(optimizer, model.named_parameters(), switch=self.switch())
        return model, self._optimizer

    def switch(self) -> Any:  # noqa: ANN401
        """What adds gradients in place of what the configuration says."""
        return None

    def synchronize(self) -> None:
        self._optimizer.synchronize()

    def update(self) -> None:
        with self._optimizer.skip_sync():
            self._optimizer.step()

    def mean(self, values: Tensor, name: str) -> Tensor:
        return self._ct.push_pull(values, name)

    def loop(self) -> Loop:
        if "COARSE_RESTARTS" not in os.environ:  # nothing would keep what is committed
            return PlainLoop(self.first_step)
        state: Loop = self._ct.Resumable(model=self._model, optimizer=self._optimizer)
        return state

    def whole(self) -> AbstractContextManager[object]:
        return nullcontext()

    def bytes_moved(self) -> int | None:
        import coarse

        return bytes_total(coarse.statistics())

    def dual_sync(self) -> dict[str, Any] | None:
        found = self._optimizer.dual_sync
        return None if found is None else asdict(found)

    def leave(self) -> None:
        self._ct.shutdown()


class SwitchTeam(CoarseTeam):
    """Workers whose gradients a memory device adds, as a switch of SwitchML or SHARP does."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` are those of a Switch."""
        super().__init__("coarse", None)
        self._options = options

    def switch(self) -> Any:  # noqa: ANN401
        """See CoarseTeam."""
        return self._ct.Switch(**self._options)


class LuwuTeam(CoarseTeam):
    """Workers that pull the model and push its gradients; a memory device keeps states on disks and makes the steps."""

    synchronises = False  # a twin would hold the whole model

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` are those of model_in_network."""
        super().__init__("coarse", None)
        self._options = options

    def join(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        model, self._optimizer = self._ct.model_in_network(
            model, type(optimizer), **self._options, **settings_of(optimizer)
        )
        self.first_step = self._optimizer.steps
        return model, self._optimizer

    def loop(self) -> Loop:
        loop = PlainLoop(self.first_step)
        if carry := getattr(self._optimizer, "carry", None):  # what is in --storage goes on, and this with it
            carry(loop=loop)
        return loop

    def whole(self) -> AbstractContextManager[object]:
        summoned: AbstractContextManager[object] = self._optimizer.summoned()
        return summoned

    def synchronize(self) -> None:
        return None

    def update(self) -> None:
        self._optimizer.step()

    def bytes_moved(self) -> int | None:
        return None

    def dual_sync(self) -> dict[str, Any] | None:
        return None


class ShardedTeam(CoarseTeam):
    """Workers that each hold a part of the model, and gather it unit by unit."""

    synchronises = False  # a twin would hold the whole model

    def __init__(self, mode: str) -> None:
        super().__init__("coarse", None)
        self._mode = mode

    def join(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        model = self._model = self._ct.fully_shard(model, mode=self._mode)
        self._optimizer = type(optimizer)(model.parameters(), **settings_of(optimizer))
        return model, self._optimizer

    def synchronize(self) -> None:
        return None

    def update(self) -> None:
        self._optimizer.step()

    def dual_sync(self) -> dict[str, Any] | None:
        return None


class OffloadedTeam(LuwuTeam):
    """Workers that shard the model by FSDP, and keep their shards' states on disks, or in memory, of their own."""

    def join(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        model = self._ct.fully_shard(model)
        self._optimizer = self._ct.OffloadedOptimizer(
            model.parameters(), type(optimizer), **self._options, **settings_of(optimizer)
        )
        self.first_step = self._optimizer.steps
        return model, self._optimizer

    def whole(self) -> AbstractContextManager[object]:
        return nullcontext()  # of shards, which are in place

    def leave(self) -> None:
        self._optimizer.close()
        super().leave()


def open_team(
    mode: str, environ: Mapping[str, str], policy: str | None = None, network: Mapping[str, Any] | None = None
) -> Team:
    """The team of this process in `mode`, one of MODES or a strategy of one's own; a `policy` of None is the configured
    one, and `network` has the options of modes that keep states elsewhere."""
    if mode in ("luwu", *OFFLOADED):
        return (LuwuTeam if mode == "luwu" else OffloadedTeam)(network or {"storage": None})
    if mode in SWITCHED:
        return SwitchTeam(network or {"sum": SWITCHED[mode]})
    if mode in SHARDED_MODES:
        return ShardedTeam(mode)
    if mode in COARSE_MODES or is_strategy(mode):
        return CoarseTeam(mode, policy)
    if mode == "single":
        return AloneTeam(0, 1)
    rank, size = place_of(environ)
    if mode == "none":
        return AloneTeam(rank, size)
    if mode == "ddp":
        return DdpTeam(rank, size, environ)
    raise ValueError(f"a mode is one of {', '.join(MODES)}, got {mode!r}")


def is_strategy(mode: str) -> bool:
    """Return whether a mode names a strategy of one's own, as MODULE:CLASS or FILE.py:CLASS."""
    return ":" in mode


def place_of(environ: Mapping[str, str]) -> tuple[int, int]:
    """This process's rank and world size as its launcher tells them; (0, 1) when started by none."""
    launcher = innermost_launcher(environ)
    if launcher is None:
        return 0, 1
    if launcher.kind is LauncherKind.MPIRUN:  # `coarse run` counts workers alone there
        return int(environ["OMPI_COMM_WORLD_RANK"]), int(environ["OMPI_COMM_WORLD_SIZE"])
    return launcher.rank, launcher.num_ranks


def rendezvous_port(environ: Mapping[str, str]) -> int:
    """A port that all ranks of one job derive alike and that two jobs rarely share."""
    if "MASTER_PORT" in environ:
        return int(environ["MASTER_PORT"])
    return 20_000 + zlib.crc32(environ.get("PMIX_NAMESPACE", "alone").encode()) % 10_000


def bytes_total(statistics: Mapping[str, Any]) -> int:
    """The bytes of all keys of this worker, from what `coarse.statistics` reports."""
    return int(statistics["bytes"])
