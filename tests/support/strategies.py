"""Strategies that tests name: coarse's ways to sum, and stars."""

from dataclasses import dataclass, replace

from coarse.protocol.plan import Cluster, Facts, Plan, Tensor
from coarse.strategy.builtin import Coarse
from coarse.strategy.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class StarOfAll(Coarse):
    """Routes as measured; every device adds what lies on it, and all devices form one star, also those without any."""

    collective: str = "ring"

    def plan(self, tensor: Tensor, cluster: Cluster, facts: tuple[Facts, ...]) -> Plan:
        found = super().plan(tensor, cluster, facts)
        return replace(found, blocks=tuple(replace(block, exchange="star") for block in found.blocks))


def strategy_of(collective: str) -> Strategy:
    """Coarse by "in_place" or "ring", or "star"."""
    return StarOfAll() if collective == "star" else Coarse(collective=collective)
