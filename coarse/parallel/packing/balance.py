# Pure: no MPI, threads, clock or environment.
"""Division of a minibatch among ranks and microbatches: ODC's LocalSort, LB-Micro and LB-Mini."""

import math
from collections.abc import Sequence

from coarse.errors import ConfigError
from coarse.parallel.packing.costs import TOKENS, Cost
from coarse.parallel.packing.partitions import Parts, balanced_parts
from coarse.parallel.packing.plans import Microbatch, MinibatchPlan, require_lengths


def local_sort(lengths: Sequence[int], num_ranks: int, *, pad: bool = False) -> MinibatchPlan:
    """Give each rank the samples that come to it in turn, the longest first, each a microbatch of its own.

    Args:
        lengths: tokens of each sample of the minibatch.
        num_ranks: ranks that share the minibatch.
        pad: whether ranks with one sample less have a microbatch of weight 0.

    Raises:
        ConfigError: samples that do not divide among ranks, if they are not padded.
    """
    require_lengths(lengths, num_ranks)
    own = [sorted(range(rank, len(lengths), num_ranks), key=lambda one: (-lengths[one], one)) for rank in
           range(num_ranks)]  # fmt: skip
    return _in_step([[(sample,) for sample in samples] for samples in own], pad=pad)


def lb_micro(
    lengths: Sequence[int], num_ranks: int, cap: int, cost: Cost = TOKENS, *, pad: bool = False
) -> MinibatchPlan:
    """Pack microbatches of at most `cap` tokens, equally many on all ranks, with equal costs at each place.

    The plan is never slower than local_sort for ranks that wait for one another in each.

    Args:
        lengths: tokens of each sample of the minibatch.
        num_ranks: ranks that share the minibatch.
        cap: tokens of a microbatch.
        cost: cost of a sample, by its length.
        pad: whether a rank may have microbatches of weight 0 if there are too few samples.

    Raises:
        ConfigError: a rank that cannot have a sample in each microbatch, if they are not padded.
        CapacityError: a sample that is longer than the cap.
    """
    require_lengths(lengths, num_ranks, cap)
    costs = [cost.of(length) for length in lengths]
    least = max(1, math.ceil(sum(lengths) / (cap * num_ranks)))
    most = math.ceil(len(lengths) / num_ranks)
    plans = []
    for num_microbatches in range(min(least, most), most + 1):
        num_parts = min(num_microbatches * num_ranks, len(lengths))
        parts = _capped_parts(lengths, costs, num_parts, cap)
        if parts is not None:
            plans.append(_by_cost(parts, costs, num_ranks, pad=pad))
            break
    if pad or not len(lengths) % num_ranks:
        plans.append(local_sort(lengths, num_ranks, pad=pad))
    if not plans:
        raise _too_few(len(lengths), num_ranks)
    return min(plans, key=lambda plan: plan.lockstep_s(lengths, cost))


def lb_mini(
    lengths: Sequence[int], num_ranks: int, cap: int, cost: Cost = TOKENS, *, equal_samples: bool = False
) -> MinibatchPlan:
    """Divide samples among ranks by cost, over the whole minibatch; each rank packs its own.

    It packs them into as few microbatches of at most `cap` tokens as it finds. Ranks may have different numbers of
    them, or none. The plan is never slower than local_sort for ranks that meet once a minibatch.

    Args:
        lengths: tokens of each sample of the minibatch.
        num_ranks: ranks that share the minibatch.
        cap: tokens of a microbatch.
        cost: cost of a sample, by its length.
        equal_samples: whether each rank has equally many samples.

    Raises:
        ConfigError: samples that do not divide among ranks, if each is to have equally many.
        CapacityError: a sample that is longer than the cap.
    """
    require_lengths(lengths, num_ranks, cap)
    costs = [cost.of(length) for length in lengths]
    divided = balanced_parts(costs, num_ranks, is_equal=equal_samples)
    in_turn: Parts = [list(range(rank, len(lengths), num_ranks)) for rank in range(num_ranks)]
    plans = [
        MinibatchPlan(tuple(tuple(_packed(part, lengths, cap)) for part in parts)) for parts in (divided, in_turn)
    ]
    return min(plans, key=lambda plan: plan.independent_s(lengths, cost))


def _packed(samples: Sequence[int], lengths: Sequence[int], cap: int) -> list[Microbatch]:
    """Pack samples, the longest first, each where it fits first."""
    microbatches: list[list[int]] = []
    left: list[int] = []
    for sample in sorted(samples, key=lambda one: (-lengths[one], one)):
        place = next((place for place, room in enumerate(left) if lengths[sample] <= room), None)
        if place is None:
            microbatches.append([])
            left.append(cap)
            place = len(left) - 1
        microbatches[place].append(sample)
        left[place] -= lengths[sample]
    return [tuple(sorted(one)) for one in microbatches]


def _capped_parts(lengths: Sequence[int], costs: Sequence[float], num_parts: int, cap: int) -> Parts | None:
    """Return parts of equal cost, none of which is empty or above the cap; None if neither way finds any."""
    parts = balanced_parts(costs, num_parts)
    if all(part and sum(lengths[one] for one in part) <= cap for part in parts):
        return parts
    parts = [[] for _ in range(num_parts)]
    tokens, spent = [0] * num_parts, [0.0] * num_parts
    order = sorted(range(len(lengths)), key=lambda one: (-costs[one], one))
    for place, sample in enumerate(order):
        left = len(order) - place
        empty = [number for number in range(num_parts) if not parts[number]]
        open_parts = empty if left <= len(empty) else range(num_parts)
        fitting = [number for number in open_parts if tokens[number] + lengths[sample] <= cap]
        if not fitting:
            return None
        number = min(fitting, key=lambda number: (spent[number], number))
        parts[number].append(sample)
        tokens[number] += lengths[sample]
        spent[number] += costs[sample]
    return parts


def _by_cost(parts: Parts, costs: Sequence[float], num_ranks: int, *, pad: bool) -> MinibatchPlan:
    """Return a plan in which microbatches of one place are neighbours in cost."""
    order = sorted(parts, key=lambda part: (-sum(costs[one] for one in part), part))
    own: list[list[Microbatch]] = [[] for _ in range(num_ranks)]
    for place, part in enumerate(order):
        own[place % num_ranks].append(tuple(sorted(part)))
    return _in_step(own, pad=pad)


def _in_step(own: list[list[Microbatch]], *, pad: bool) -> MinibatchPlan:
    most = max(map(len, own))
    if any(len(of_rank) < most for of_rank in own) and not pad:
        raise _too_few(sum(len(one) for of_rank in own for one in of_rank), len(own))
    return MinibatchPlan(tuple((*of_rank, *((),) * (most - len(of_rank))) for of_rank in own))


def _too_few(num_samples: int, num_ranks: int) -> ConfigError:
    return ConfigError(
        f"{num_samples} samples do not give each of {num_ranks} ranks one in each microbatch; add samples, pass "
        "pad=True for microbatches of weight 0, or take lb_mini, whose ranks need not have equally many",
        key="lengths",
    )
