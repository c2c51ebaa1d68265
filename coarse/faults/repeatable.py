"""Settings by which two runs of a job differ in bits, so that a resumed one would be another training."""

from coarse.errors import ConfigError
from coarse.protocol.commits import MOST_COMMUTATIVE
from coarse.protocol.config import Config, FixedRouting
from coarse.strategy.strategy import Exchanges, Strategy


def require_repeatable(
    config: Config, strategy: Strategy, num_workers: int, num_device_nodes: int, *, is_ddp: bool = False
) -> None:
    """Refuse measured choices that decide the order of sums, and a strategy's states that are not kept.

    Args:
        config: the job's configuration.
        strategy: the job's strategy.
        num_workers: number of workers.
        num_device_nodes: number of nodes with memory devices.
        is_ddp: True if torch's DDP sums gradients, by the workers' all-reduce.

    Raises:
        ConfigError: names the setting, and the remedy.
    """
    _require_no_states(strategy)
    if config.emulate is not None:
        raise ConfigError(
            "Resumable: a job on an emulated machine is not started again; leave out --machine",
            key="emulate",
        )
    if num_workers <= MOST_COMMUTATIVE:
        return
    by_workers = not strategy.uses_devices or strategy.shares
    if by_workers and strategy.uses_devices and config.decision is None:
        raise _unrepeatable(
            f"measured times decide who sums which gradients (policy {config.policy!r})",
            'set policy = "devices", or fix what is decided by decision = FILE', "policy",
        )  # fmt: skip
    if (by_workers or is_ddp) and config.worker_collective == "mpi":
        raise _unrepeatable(
            "MPI's all-reduce sums in an order of its own", 'set worker_collective = "ring"', "worker_collective"
        )
    has_rings = config.collective == "ring" or num_device_nodes > 1
    if has_rings and not isinstance(config.routing, FixedRouting) and config.decision is None:
        raise _unrepeatable(
            "devices sum in rings, and measured routes decide where each tensor's ring begins",
            'set [routing] policy = "fixed", or fix what is measured by decision = FILE', "routing",
        )  # fmt: skip


def _require_no_states(strategy: Strategy) -> None:
    name = type(strategy).__name__
    if strategy.lag:
        raise _not_kept(f"{name}'s sums come {strategy.lag} rounds late, and those under way")
    if strategy.has_wires:
        raise _not_kept(f"what {name}'s wires have left of a round")
    if strategy.exchanges is Exchanges.GRADIENTS and type(strategy).round is not Strategy.round:
        raise _not_kept(f"{name}.round() counts rounds, and their number")


def _not_kept(what: str) -> ConfigError:
    return ConfigError(f"Resumable: {what} would be lost with the processes; take another strategy", key="mode")


def _unrepeatable(why: str, remedy: str, key: str) -> ConfigError:
    return ConfigError(
        f"Resumable: {why}, so that a run of more than two workers that goes on has other bits than one that was not "
        f"disturbed; {remedy}",
        key=key,
    )
