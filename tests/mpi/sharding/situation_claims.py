"""Every situation in every mode, against one process alone; then some with a rule broken, which must be seen."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from unittest.mock import patch

import numpy as np
from torch import Tensor

from coarse.parallel.sharded.passes import ChangeWatch, Mark
from tests.mpi.sharding import editing_situations, training_situations
from tests.mpi.sharding.runs import require_equal, tell
from tests.mpi.sharding.situation import SITUATIONS
from tests.support.claims import Claim, takes_all

STORIES = (training_situations, editing_situations)
"""Modules that have listed their situations."""
TOLERANCE = 1e-9


@functools.cache
def alone(name: str) -> dict[str, Tensor]:
    """What one process ends a situation with."""
    return tell(SITUATIONS[name], None)


def equals_one_process(
    mode: str, name: str, broken: Callable[[], AbstractContextManager[object]] = nullcontext
) -> None:
    with broken():
        found = tell(SITUATIONS[name], mode)
    require_equal(found, alone(name), TOLERANCE)


# --- mutations


@contextmanager
def never_dirty() -> Iterator[None]:
    """Take whatever is kept for current."""

    def look(_watch: ChangeWatch, marks: list[Mark]) -> np.ndarray:
        return np.zeros(len(marks), np.uint8)

    with patch.object(ChangeWatch, "look", look):
        yield


@contextmanager
def without_checksums() -> Iterator[None]:
    """Believe torch's version counters."""
    with patch("coarse.torch.fsdp.unit.checksum", lambda tensors: 0):
        yield


MUTATIONS = {
    never_dirty: (
        "optimizer_steps",
        "load_state_dict_in_mid_training",
        "a_unit_unfrozen_half_way",
        "adapters_beside_a_frozen_base",
    ),
    without_checksums: (
        "an_edit_of_frozen_weights_through_data",
        "an_edit_through_data_of_one_element_on_one_worker",
        "an_edit_through_data_that_keeps_every_sum",
        "a_frozen_unit_edited_while_no_step_uses_it",
    ),
}
"""Broken rules, and situations that must show it."""


# --- which situation in which mode


ALL, OFTEN = ("fcdp",), ("fcdp, tau between",)
"""Modes that go through all situations, and through those in which what is kept lives longest; the rest through few.

In `make test` each situation comes once: in OFTEN, in zeropp, which keeps shards too, or else in ALL; but for one.
"""
FEW = (
    "gradient_accumulation_without_synchronisation",
    "activation_checkpointing",
    "evaluation_between_backward_and_step",
    "a_unit_that_some_steps_do_not_use",
    "an_evaluation_that_leaves_out_a_unit_before_a_step",
    "weights_swapped_for_an_evaluation_between_forward_and_backward",
)
MORE = (
    "load_state_dict_in_mid_training",
    "an_edit_through_data_of_one_element_on_one_worker",
    "adapters_beside_a_frozen_base",
    "a_unit_unfrozen_half_way",
    "an_optimizer_step_within_backward",
    "a_forward_that_fails_half_way_and_an_edit_afterwards",
    "three_models_in_one_process",
)
IN_TEST_ALL = ("blocks_that_are_compiled",)
"""Left out of `make test`, which has a whole model compiled."""


def claims() -> Iterator[Claim]:
    """One for each mode and situation."""
    for mode in (*ALL, *OFTEN, "zeropp", *(("fsdp", "hybrid") if takes_all() else ())):
        for name in situations_in(mode):
            yield claim(f"{mode}: {name}", functools.partial(equals_one_process, mode, name))


def situations_in(mode: str) -> Iterable[str]:
    """The situations that a mode goes through."""
    if takes_all():
        return SITUATIONS if mode in ALL else (*FEW, *MORE) if mode in OFTEN else FEW
    if mode in ALL:
        return [name for name in SITUATIONS if name not in {*FEW, *MORE, *IN_TEST_ALL}]
    return MORE if mode in OFTEN else FEW


def mutated() -> Iterator[Claim]:
    """One for each broken rule and situation, which must not hold."""
    for broken, names in MUTATIONS.items():
        for name in names if takes_all() else names[1:3]:
            check = functools.partial(equals_one_process, "fcdp", name, broken)
            yield claim(f"{broken.__name__}: {name}", check)


def claim(name: str, check: functools.partial[None]) -> Claim:
    """A check under a name."""
    check.__name__ = name  # type: ignore[attr-defined]
    return check
