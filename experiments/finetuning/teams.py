"""How the workers of a fine-tuning train one model: one class per way, and nothing else differs between modes.

[Note: what a user changes] ReplicatedTeam.join and ShardedTeam.join hold the lines that a script of one process gains.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from experiments.gpt.network import settings_of
from experiments.start import join_job

REPLICATED_MODES = ("dense", "allreduce", "coarse")
SHARDED_MODES = ("fsdp", "hybrid", "zeropp", "fcdp")
MODES = ("single", *REPLICATED_MODES, *SHARDED_MODES, "luwu")
COLLECTIVES = ("hierarchical", "ring")

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


class DifferentRanksError(RuntimeError):
    """Workers that were about to train on different data or from different weights."""


class Team(Protocol):
    """One worker's view of the group it trains in."""

    rank: int
    size: int

    def join(self, model: nn.Module, make_optimizer: MakeOptimizer, num_passes: int) -> tuple[nn.Module, Optimizer]:
        """The model to call, and the optimizer of its trainable parameters; a step has `num_passes` backwards."""

    def synchronize(self) -> None:
        """Wait until the gradients are the mean over workers."""

    def clip(self, model: nn.Module, largest: float) -> float:
        """Scale all gradients so that their norm is at most `largest`; the norm that they had, over all shards."""

    def update(self) -> None:
        """Apply the gradients that `synchronize` has completed, and zero them."""

    def mean(self, values: Sequence[float], name: str) -> list[float]:
        """The mean over workers of each value; all workers give as many under a name."""

    def require_same(self, numbers: Sequence[int], what: str) -> None:
        """DifferentRanksError on all workers alike if any of the integers, each below 2**52, differs between them."""

    def bytes_between_nodes(self) -> dict[str, int]:
        """Bytes that this worker has sent to other nodes so far, by what for; empty where the team does not count."""

    def leave(self) -> None:
        """End what the team opened."""


class AloneTeam:
    """A single process without coarse."""

    rank = 0
    size = 1

    def join(self, model: nn.Module, make_optimizer: MakeOptimizer, num_passes: int) -> tuple[nn.Module, Optimizer]:
        self._optimizer = make_optimizer(trainable(model))
        return model, self._optimizer

    def synchronize(self) -> None:
        return None

    def clip(self, model: nn.Module, largest: float) -> float:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), largest)
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()

    def mean(self, values: Sequence[float], name: str) -> list[float]:
        return list(values)

    def require_same(self, numbers: Sequence[int], what: str) -> None:
        return None

    def bytes_between_nodes(self) -> dict[str, int]:
        return {}

    def leave(self) -> None:
        return None


class CoarseTeam(AloneTeam):
    """The workers of a job of coarse, which has been started."""

    def __init__(self) -> None:
        import coarse.torch as ct  # here, so that a single process runs without it

        self._ct = ct
        self.rank = ct.rank()
        self.size = ct.size()

    def mean(self, values: Sequence[float], name: str) -> list[float]:
        summed: Tensor = self._ct.push_pull(torch.tensor(values, dtype=torch.float64), f"{name}.{len(values)}")
        return [float(value) for value in summed.tolist()]

    def require_same(self, numbers: Sequence[int], what: str) -> None:
        mine = torch.tensor(numbers, dtype=torch.float64)
        largest = self._ct.push_pull(torch.cat([mine, -mine]), f"same.{what}", op=self._ct.Max)
        if not torch.equal(largest[: len(numbers)], -largest[len(numbers) :]):
            raise DifferentRanksError(
                f"rank {self.rank}: {what} differ between the {self.size} workers; "
                "give all of them the same files, versions and --seed"
            )

    def leave(self) -> None:
        self._ct.shutdown()


class ReplicatedTeam(CoarseTeam):
    """Every worker has the whole model; memory devices or the workers themselves add the gradients."""

    def join(self, model: nn.Module, make_optimizer: MakeOptimizer, num_passes: int) -> tuple[nn.Module, Optimizer]:
        self._ct.broadcast_parameters(model.named_parameters(), root_rank=0)
        self._optimizer = self._ct.DistributedOptimizer(
            make_optimizer(trainable(model)), model.named_parameters(), backward_passes_per_step=num_passes
        )
        return model, self._optimizer

    def synchronize(self) -> None:
        self._optimizer.synchronize()

    def update(self) -> None:
        with self._optimizer.skip_sync():
            self._optimizer.step()
        self._optimizer.zero_grad()


class ShardedTeam(CoarseTeam):
    """Every worker has a shard of each parameter; layers are gathered when they are needed."""

    def __init__(self, mode: str, collective: str, *, quantised: bool = False) -> None:
        super().__init__()
        self._options = {"mode": mode, "collective": collective, "quantised": quantised}

    def join(self, model: nn.Module, make_optimizer: MakeOptimizer, num_passes: int) -> tuple[nn.Module, Optimizer]:
        sharded = self._ct.fully_shard(model, **self._options)
        self._optimizer = make_optimizer(trainable(sharded))
        # torch warns of adapters, whose layers return views; nothing here changes their outputs in place
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
        return sharded, self._optimizer

    def bytes_between_nodes(self) -> dict[str, int]:
        return {what: sent for what, (sent, _) in self._ct.bytes_between_nodes().items()}


class LuwuTeam(CoarseTeam):
    """The model is in the network: workers pull it block by block, memory devices keep states on disks and step."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` are those of model_in_network."""
        super().__init__()
        self._options = options

    def join(self, model: nn.Module, make_optimizer: MakeOptimizer, num_passes: int) -> tuple[nn.Module, Optimizer]:
        asked = make_optimizer(trainable(model))
        model, self._optimizer = self._ct.model_in_network(
            model, type(asked), accumulate=num_passes, **self._options, **settings_of(asked)
        )
        return model, self._optimizer

    def clip(self, model: nn.Module, largest: float) -> float:
        return float(self._optimizer.clip_grad_norm(largest))


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that the optimizer updates."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def open_team(
    mode: str,
    collective: str = "hierarchical",
    *,
    quantised: bool = False,
    network: Mapping[str, Any] | None = None,
) -> Team:
    """The team of this process in `mode`, one of MODES; the rest is for the sharded ones, `quantised` for zeropp, and
    `network`, the options of model_in_network, for luwu.
    """
    if mode not in MODES:
        raise ValueError(f"a mode is one of {', '.join(MODES)}, got {mode!r}")
    if mode == "single":
        return AloneTeam()

    join_job(mode=mode if mode in REPLICATED_MODES else None)  # a memory device serves in here and never returns
    if mode == "luwu":
        return LuwuTeam(network or {"storage": None})
    return ReplicatedTeam() if mode in REPLICATED_MODES else ShardedTeam(mode, collective, quantised=quantised)
