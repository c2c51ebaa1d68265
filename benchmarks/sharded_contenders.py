"""The sharding modes that `wire.py` and `throughput.py` compare, and what each should send between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MODES = ("fsdp", "hybrid", "zeropp", "fcdp")
COLLECTIVES = ("hierarchical", "ring")
PEER = "deepspeed"
"""DeepSpeed's ZeRO-3, which crosses nodes by Gloo's rings."""
UNTHROTTLED = "unthrottled"
"""The rate of links as fast as the machine."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A mode, how its collectives cross nodes, and whether adapters alone are trained."""

    mode: str
    collective: str = "hierarchical"
    is_lora: bool = False

    @property
    def name(self) -> str:
        """As tables show it, and `named` reads it."""
        collective = [] if self.mode == PEER else [self.collective]
        return "-".join([self.mode, *collective, *(["lora"] if self.is_lora else [])])


def named(name: str) -> Contender:
    """The contender of a name like "fcdp-ring-lora"; ValueError where there is none."""
    mode, _, rest = name.strip().partition("-")
    if mode == PEER and rest in ("", "lora"):
        return Contender(mode=mode, collective="ring", is_lora=bool(rest))
    collective, _, adapters = rest.partition("-")
    if mode not in MODES or collective not in COLLECTIVES or adapters not in ("", "lora"):
        raise ValueError(
            f"a contender is MODE-COLLECTIVE or MODE-COLLECTIVE-lora, of {', '.join(MODES)} and "
            f"{', '.join(COLLECTIVES)}; got {name!r}"
        )
    return Contender(mode=mode, collective=collective, is_lora=bool(adapters))


def contenders_named(names: str) -> list[Contender]:
    """The contenders of a list with commas."""
    return [named(name) for name in names.split(",")]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Bytes of all parameters (the papers' W) and of those that are trained (W_t); they are equal without adapters."""

    all_bytes: int
    trained_bytes: int


@dataclass(frozen=True)
class Volume:
    """Bytes that one node receives from the others in one step."""

    forward_bytes: float
    backward_bytes: float

    @property
    def total_bytes(self) -> float:
        """Both passes."""
        return self.forward_bytes + self.backward_bytes


def formula(contender: Contender, weights: Weights, nodes: Sequence[int]) -> Volume:
    """What a node receives in a step (FCDP Table I, VI-B and VI-C), `nodes` being the workers on each.

    A collective brings a node (N-1)/N of the bytes; on a ring of G workers (G-1)/G cross into each node.
    Gathers of frozen parameters cost FCDP nothing once they are cached.
    """
    num_nodes, num_workers = len(nodes), sum(nodes)
    share = (num_nodes - 1) / num_nodes if contender.collective == "hierarchical" else (num_workers - 1) / num_workers
    whole, trained = share * weights.all_bytes, share * weights.trained_bytes
    if contender.mode == "hybrid":  # sharded on a node, all-reduced between the nodes, always over the default group
        return Volume(0.0, 2 * (num_nodes - 1) / num_nodes * weights.trained_bytes)
    if contender.mode == "fcdp":
        return Volume(trained, trained)
    if contender.mode == PEER:
        raise ValueError("what DeepSpeed moves is not ours to say; leave it to throughput.py")
    gather_in_backward = whole if contender.mode == "fsdp" else 0.0
    return Volume(whole, gather_in_backward + trained)
