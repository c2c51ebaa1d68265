"""A run on all workers beside the same run by this process alone, and what both ended with."""

import random
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

import coarse.torch as ct
from coarse.parallel.sharded.unit_cache import AcceleratorCache
from coarse.strategy import Hybrid
from coarse.torch.fsdp.account import DeviceAccount
from tests.mpi.sharding.situation import Situation
from tests.support.references import MakeOptimizer, Run, adamw, relative_error


class FickleAccount(DeviceAccount):
    """An accelerator that is now full and now empty, on each worker at other times."""

    def __init__(self) -> None:
        super().__init__(2**30)
        self._fullness = random.Random(ct.rank())

    @property
    def used_bytes(self) -> int:
        """Nothing, or nearly all."""
        return self._fullness.choice((0, 900_000_000))


def _cached(tau: float) -> dict[str, object]:
    return {"mode": "fcdp", "cache": AcceleratorCache(tau=tau), "account": DeviceAccount(2**30)}


MODES: dict[str, Callable[[], dict[str, object]]] = {
    "fsdp": lambda: {"mode": "fsdp"},
    "fsdp in a ring": lambda: {"mode": "fsdp", "collective": "ring"},
    "hybrid": lambda: {"mode": "hybrid"},
    "hybrid of one": lambda: {"mode": Hybrid(factor=1)},
    "hybrid of all": lambda: {"mode": Hybrid(factor=ct.size())},
    "zeropp": lambda: {"mode": "zeropp"},
    "fcdp": lambda: {"mode": "fcdp"},
    "fcdp, tau 0": lambda: _cached(0.0),
    "fcdp, tau 1": lambda: _cached(1.0),
    "fcdp, tau between": lambda: {"mode": "fcdp", "cache": AcceleratorCache(tau=0.5), "account": FickleAccount()},
}
"""What is given to fully_shard, by a name for each mode."""


def started(
    model: nn.Module,
    mode: str | None,
    *,
    make_optimizer: MakeOptimizer = adamw,
    materialise: Callable[[], None] = lambda: None,
    **options: object,
) -> Run:
    """A run of a model on all workers, sharded; without a mode, by this process alone."""
    if mode is None:
        return Run(model, ct.size(), make_optimizer=make_optimizer)
    ct.fully_shard(model, **MODES[mode](), **options)
    materialise()
    return Run(model, ct.size(), ct.rank(), make_optimizer)


def tell(situation: Situation, mode: str | None) -> dict[str, Tensor]:
    """What a situation ends with, in float64: parameters, losses and norms of every model by name."""
    options = dict(situation.options)
    runs = [
        started(make().double(), mode, make_optimizer=situation.make_optimizer, **options)
        for make in (situation.make, *situation.others)
    ]
    situation.story(*runs)
    return {f"{index} {name}": value for index, run in enumerate(runs) for name, value in ends_of(run).items()}


def ends_of(run: Run) -> dict[str, Tensor]:
    """Parameters, losses and norms, on all workers."""
    found = run.values() | {"losses": torch.stack(run.losses).double() if run.is_alone else joined(run.losses)}
    return found | {"norms": torch.stack(run.norms)} if run.norms else found


def joined(losses: list[Tensor]) -> Tensor:
    """Losses (n,) float64, each the mean over all workers; a collective."""
    total = torch.stack(losses).double()
    dist.all_reduce(total)
    return total / ct.size()


def require_equal(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    """Every tensor equals, norm-wise."""
    assert found.keys() == wanted.keys()
    errors = {name: relative_error(found[name], wanted[name]) for name in wanted}
    wrong = {name: error for name, error in errors.items() if not error <= tolerance}
    assert not wrong, f"further than {tolerance} from what was wanted: {wrong}"
