"""The ways in which each claim about training is run: both policies, and NVLink on and off where there is any."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from experiments.coarse_paper.cells import Cell, Outcome, outcome
from experiments.coarse_paper.inputs import Platform

POLICIES = ("paper", "auto")
_policies: ContextVar[tuple[str, ...]] = ContextVar("policies", default=POLICIES)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way."""

    policy: str
    nvlink: bool
    label: str

    def applied(self, cell: Cell) -> Cell:
        """The cell, run in this way."""
        return replace(cell, policy=self.policy, nvlink=self.nvlink)


@contextmanager
def by_policies(*policies: str) -> Iterator[None]:
    """Show these alone."""
    token = _policies.set(policies)
    try:
        yield
    finally:
        _policies.reset(token)


def settings(platform: Platform) -> Iterator[Setting]:
    """All ways on a machine."""
    for policy in _policies.get():
        if platform is Platform.V100:
            for nvlink in (True, False):  # the paper's machine, and one that it disables NVLink to profile
                label = f"policy {policy}, NVLink {'on' if nvlink else 'off'}"
                yield Setting(policy=policy, nvlink=nvlink, label=label)
        else:
            yield Setting(policy=policy, nvlink=True, label=f"policy {policy}")


def with_baselines(cell: Cell) -> Iterator[Cell]:
    """A cell, and the all-reduce and, on one node, DENSE that it is compared with."""
    yield cell
    yield cell.baseline("allreduce")
    if cell.num_nodes == 1:
        yield cell.baseline("dense")


def allreduce(cell: Cell) -> Outcome:
    """The same training by the workers' ring alone."""
    return outcome(cell.baseline("allreduce"))


def dense(cell: Cell) -> Outcome:
    """The same training over coherent loads and stores to one device."""
    return outcome(cell.baseline("dense"))


def speedup(cell: Cell) -> float:
    """Over DENSE: the paper's metric of Fig. 16a-d."""
    return dense(cell).iteration_s / outcome(cell).iteration_s


def speed_ratio(cell: Cell) -> float:
    """Over all-reduce, same batch."""
    return allreduce(cell).iteration_s / outcome(cell).iteration_s


def blocked_ratio(cell: Cell) -> float:
    """Blocked communication over that of all-reduce, same batch."""
    return outcome(cell).exposed_s / allreduce(cell).exposed_s


def bar_label(cell: Cell, setting: Setting) -> str:
    """Workers and devices, the batch unless it is V-D's, and how the cell was run."""
    way = setting.label.removeprefix("policy ").replace(", ", "\n")
    batch = f"\nbatch {cell.batch}" if (cell.model, cell.batch) == ("bert-large", 4) else ""
    return f"{cell.num_workers}+{cell.num_devices or cell.num_workers}{batch}\n{way}"
