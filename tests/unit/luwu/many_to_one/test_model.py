"""Every state that small cases can reach: right sums and packets in each, an end from each; holes are found.

`python -m pytest -s` prints the numbers of states. The larger cases are those of `make test-model`.
"""

import os
from collections.abc import Callable

import pytest

from coarse.luwu.many_to_one.receiver import Receiver
from coarse.luwu.many_to_one.sender import Sender
from coarse.luwu.many_to_one.switch import AddingSwitch, BroadcastingSwitch
from experiments.many_to_one.go_back_n import GoBackAddingSwitch, GoBackBroadcastingSwitch, GoBackSender
from tests.support.model_check import Outcome, explore
from tests.unit.luwu.many_to_one import holes
from tests.unit.luwu.many_to_one.directions import GradientsGoUp, ParametersGoDown
from tests.unit.luwu.many_to_one.model import MODULUS, Anyone, Model

FIRST = MODULUS - 2
"""Streams begin here, so that numbers on the wire begin anew within them."""
NEVER = None
"""No number of faults: an unreliable network."""


def outcome_of(model: Model, what: str) -> Outcome:
    outcome = explore(model.first, model.steps, model.is_end)
    print(f"{what}: {outcome.num_states:,} states, {outcome.num_steps:,} steps")
    return outcome


def up(
    workers: int, packets: int, window: int, faults: int | None, *,
    sender: Callable[[], object] | None = None, switch: object = None, unwrap: Callable[..., int] | None = None,
) -> Model:  # fmt: skip
    """Gradients by selective repeat."""
    made = sender or (lambda: Sender(0, window, first=FIRST, reorder=0))
    return GradientsGoUp(
        [made() for _ in range(workers)], switch or adding(workers, window), Receiver(0, window, first=FIRST),
        first=FIRST, num_packets=packets, window=window, faults=faults, has_stamps=True,
        **({"unwrap": unwrap} if unwrap else {}),
    )  # fmt: skip


def adding(workers: int, window: int, kind: type[AddingSwitch] = AddingSwitch) -> AddingSwitch:
    return kind(workers, window, window, first=FIRST, reorder=0)


def anyone(packets: int, window: int) -> Callable[[], Anyone]:
    return lambda: Anyone(FIRST + packets, window, first=FIRST)


def up_again(
    packets: int, window: int, faults: int | None, kind: type[GoBackAddingSwitch] = GoBackAddingSwitch, *,
    sender: Callable[[], object] | None = None,
) -> Model:  # fmt: skip
    """Gradients of two workers by go-back-N."""
    made = sender or (lambda: GoBackSender(0, window, first=FIRST))
    return GradientsGoUp(
        [made(), made()], kind(2, window, first=FIRST), Receiver(0, window, first=FIRST),
        first=FIRST, num_packets=packets, window=window, faults=faults, has_stamps=False,
    )  # fmt: skip


def down(workers: int, packets: int, window: int, faults: int | None) -> Model:
    """Parameters by selective repeat."""
    return ParametersGoDown(
        Sender(0, window, first=FIRST, reorder=0),
        BroadcastingSwitch(workers, window, [window] * workers, first=FIRST, reorder=0),
        [Receiver(0, window, first=FIRST) for _ in range(workers)],
        first=FIRST, num_packets=packets, window=window, faults=faults, has_stamps=True,
    )  # fmt: skip


def down_again(packets: int, window: int, faults: int | None) -> Model:
    """Parameters for two workers by go-back-N."""
    return ParametersGoDown(
        GoBackSender(0, window, first=FIRST), GoBackBroadcastingSwitch(2, window, first=FIRST),
        [Receiver(0, window, first=FIRST) for _ in range(2)],
        first=FIRST, num_packets=packets, window=window, faults=faults, has_stamps=False,
    )  # fmt: skip


CASES: dict[str, Callable[[], Model]] = {
    "up, 2 workers who may send anything at any time, 2 packets, window 2": lambda: up(
        2, 2, 2, NEVER, sender=anyone(2, 2)
    ),
    "up, 2 workers, 3 packets, window 1": lambda: up(2, 3, 1, NEVER),
    "up, 1 worker, 3 packets, window 1": lambda: up(1, 3, 1, NEVER),
    "up, 2 workers, 3 packets, window 2, one fault": lambda: up(2, 3, 2, 1),
    "up, go-back-N, 2 workers, 3 packets, window 2, one fault": lambda: up_again(3, 2, 1),
    "down, 2 workers, 3 packets, window 1": lambda: down(2, 3, 1, NEVER),
    "down, 2 workers, 2 packets, window 1": lambda: down(2, 2, 1, NEVER),
    "down, 1 worker, 3 packets, window 1": lambda: down(1, 3, 1, NEVER),
    "down, 2 workers, 3 packets, window 2, one fault": lambda: down(2, 3, 2, 1),
    "up, go-back-N, 2 workers who may send anything, 3 packets, window 2": lambda: up_again(
        3, 2, NEVER, sender=anyone(3, 2)
    ),
    "down, go-back-N, 2 workers, 3 packets, window 2, one fault": lambda: down_again(3, 2, 1),
}


IN_TEST_ALL = {
    "up, 2 workers, 3 packets, window 2, one fault", "down, 2 workers, 3 packets, window 2, one fault",
    "down, 2 workers, 3 packets, window 1",
    "down, go-back-N, 2 workers, 3 packets, window 2, one fault",
}  # fmt: skip


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=pytest.mark.test_all) if what in IN_TEST_ALL else what for what in CASES
    ],
)
def test_sums_and_packets_are_right_in_every_state_and_every_fair_run_ends(what: str) -> None:
    outcome = outcome_of(CASES[what](), what)
    assert outcome.fault is None, "\n".join(outcome.trace)
    assert outcome.num_states > 100


HOLES = {
    "a slot is cleared when its sum is sent": (
        lambda: up_again(3, 2, NEVER, holes.ClearedWhenSent, sender=anyone(3, 2)), "is taken as",
    ),
    "a packet that comes again is added again": (
        lambda: up_again(2, 2, NEVER, holes.AddedTwice, sender=anyone(2, 2)), "is taken as",
    ),
    "a lost sum is not sent again": (lambda: up_again(1, 1, 1, holes.SumSentOnce), "no end"),
    "a child's packet is taken again": (
        lambda: up(2, 2, 2, NEVER, sender=anyone(2, 2), switch=holes.with_parts(adding(2, 2), child=holes.TakesAgain)),
        "is taken as",
    ),
    "the switch never sends again": (
        lambda: up(2, 1, 1, 1, switch=holes.with_parts(adding(2, 1), sender=holes.NeverResends)), "no end",
    ),
    "an echo is taken for an acknowledgement": (
        lambda: up(2, 2, 2, 1, switch=holes.with_parts(adding(2, 2), sender=holes.BelievesEchoes)), "no end",
    ),
    "credit is given before the sum is acknowledged": (
        lambda: up(2, 3, 2, NEVER, sender=anyone(3, 2), switch=adding(2, 2, holes.CreditWhenSent)), "is taken as",
    ),
    "numbers on the wire are taken as they are": (
        lambda: up(1, 3, 1, NEVER, unwrap=lambda number, near, modulus: number), "no end",
    ),
}  # fmt: skip


@pytest.mark.parametrize("hole", HOLES)
def test_each_hole_is_found_when_it_is_planted(hole: str) -> None:
    model, why = HOLES[hole]
    outcome = outcome_of(model(), hole)
    assert outcome.fault is not None
    assert why in outcome.fault


@pytest.mark.skipif("COARSE_TEST_MODEL" not in os.environ, reason="minutes; make test-model")
@pytest.mark.parametrize(
    ("what", "model"),
    [
        (
            "up, 2 workers who may send anything at any time, 3 packets, window 2",
            lambda: up(2, 3, 2, NEVER, sender=anyone(3, 2)),
        ),
        ("up, 1 worker, 2 packets, window 2", lambda: up(1, 2, 2, NEVER)),
        ("up, 2 workers, 3 packets, window 2, two faults", lambda: up(2, 3, 2, 2)),
        ("up, 1 worker, 3 packets, window 2", lambda: up(1, 3, 2, NEVER)),
        ("down, 2 workers, 3 packets, window 2, two faults", lambda: down(2, 3, 2, 2)),
        ("up, go-back-N, 2 workers, 3 packets, window 2, two faults", lambda: up_again(3, 2, 2)),
    ],
)
def test_larger_cases_are_right_too(what: str, model: Callable[[], Model]) -> None:
    outcome = outcome_of(model(), what)
    assert outcome.fault is None, "\n".join(outcome.trace)
