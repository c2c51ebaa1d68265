# Pure: no MPI, threads, clock or environment.
"""Plan of flat buckets: the gradients that share one, and their places in it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from coarse.protocol.dtypes import DType, Op
from coarse.protocol.layout import FlatLayout, bucket_limit_bytes, flat_layout, fuse
from coarse.protocol.plan import Cluster, Facts
from coarse.protocol.records import Descriptor
from coarse.strategy.sent import COHORT_RANKS, sent_nbytes
from coarse.strategy.strategy import Strategy, require_hints

_ALIGN_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class BucketPlan:
    """Plan of one bucket: the parameters that share it, and each gradient's place in it."""

    index: int
    descriptor: Descriptor
    """Descriptor of the gradients, with counts at the end: `num_cohorts` elements per parameter and as many more
    (coarse.torch.ddp.buckets)."""
    layout: FlatLayout
    names: tuple[str, ...]
    cohort_ranks: int
    """Number of ranks that are counted together: all that the type can count."""
    num_cohorts: int
    """Number of such groups that the ranks form, by their numbers."""

    is_exact: bool = False
    """True if all of it is wanted exactly and in this round, unlike gradients."""

    @property
    def num_exact(self) -> int:
        """Elements at its end that travel as they are: those behind the gradients that count ranks, or all."""
        return self.descriptor.num_elements if self.is_exact else self.num_cohorts * (len(self.names) + 1)


def plan_buckets(
    parameters: Sequence[tuple[str, int, int]],
    *,
    prefix: str,
    op: Op,
    bucket_bytes: int,
    num_ranks: int,
    first_index: int = 0,
    places: Mapping[str, int] = MappingProxyType({}),
    block_elements: int = 1,
    exact: frozenset[str] = frozenset(),
) -> list[BucketPlan]:
    """Return the buckets of parameters, in the order in which backward fills them.

    Parameters are (name, wire type, number of elements). `num_ranks` are counted beside each gradient. By name `places`
    says where gradients are, if not at 0. The counts share none of the blocks of `block_elements` with gradients.
    `exact` parameters have separate buckets.

    Backward produces gradients from the last layer to the first, so parameters are taken in reverse, types and places
    apart; the last bucket, which the next forward needs first, has the highest priority.
    """
    by_kind: defaultdict[tuple[int, int, bool], list[tuple[str, int]]] = defaultdict(list)
    for name, wire, num_elements in reversed(parameters):
        by_kind[wire, places.get(name, 0), name in exact].append((name, num_elements))
    position = {name: number for number, (name, _, _) in enumerate(reversed(parameters))}
    buckets = []
    for (wire, _, _), sizes in by_kind.items():
        itemsize = DType(wire).itemsize
        in_bytes = [(name, count * itemsize) for name, count in sizes]
        num_elements_of = dict(sizes)
        limit = bucket_limit_bytes(sum(nbytes for _, nbytes in in_bytes), bucket_bytes)
        for names in fuse(in_bytes, bucket_bytes=limit):
            layout = flat_layout(
                [(name, num_elements_of[name]) for name in names], align_elements=_ALIGN_BYTES // itemsize
            )
            buckets.append((wire, names, layout))
    buckets.sort(key=lambda bucket: max(position[name] for name in bucket[1]))
    plans = []
    for index, (wire, names, layout) in enumerate(buckets, start=first_index):
        name = f"{prefix}gradients/{DType(wire).label}/{index}"
        cohort_ranks = COHORT_RANKS if DType(wire).itemsize <= 2 else num_ranks
        num_cohorts = -(-num_ranks // cohort_ranks)
        counts_begin = -(-layout.num_elements // block_elements) * block_elements
        shape = (counts_begin + num_cohorts * (len(names) + 1),)
        descriptor = Descriptor(name, wire, int(op), shape, index)
        plans.append(
            BucketPlan(
                index=index,
                descriptor=descriptor,
                layout=layout,
                names=names,
                cohort_ranks=cohort_ranks,
                num_cohorts=num_cohorts,
                is_exact=names[0] in exact,
            )
        )
    return plans


def hinted(
    plans: Sequence[BucketPlan], strategy: Strategy, cluster: Cluster, facts: tuple[Facts, ...]
) -> list[BucketPlan]:
    """Return a whole model's buckets with the hints that a strategy gives them, by the facts at this time."""
    num_workers = cluster.num_workers
    nbytes = [sent_nbytes(strategy, plan.descriptor, num_workers, plan.num_exact) for plan in plans]
    hints = require_hints(strategy, strategy.hints(nbytes, cluster, facts), nbytes)
    pairs = zip(plans, hints, strict=True)
    return [replace(plan, descriptor=plan.descriptor._replace(hint=hint)) for plan, hint in pairs]
