"""Many-to-one push and pull by switches, over links that lose, repeat and delay."""

import pytest

from coarse.luwu.many_to_one.packets import WIRE_MODULUS
from experiments.many_to_one.links import Network
from experiments.many_to_one.simulation import Outcome, simulate
from tests.support.layouts import parameters

BAD = Network(loss=0.1, repeats=0.05, delays=0.1)


@pytest.mark.parametrize("tree", parameters([(1,), (2,), (5,), (2, 3), (2, 1, 2)], [(2,), (2, 1, 2)]))
@pytest.mark.parametrize("window", parameters([1, 3, 64], [3, 64]))
def test_sums_and_copies_are_right_whatever_links_do(tree: tuple[int, ...], window: int) -> None:
    for seed in range(3):
        simulate(tree, 200, BAD, window=window, seed=seed, first=WIRE_MODULUS - 100)


@pytest.mark.parametrize("tree", parameters([(1,), (3,), (2, 2), (2, 1, 2)], [(3,), (2, 1, 2)]))
@pytest.mark.parametrize("window", parameters([1, 3, 64], [3, 64]))
def test_an_all_reduce_gives_every_worker_every_sum(tree: tuple[int, ...], window: int) -> None:
    for seed in range(3):
        simulate(tree, 150, BAD, window=window, seed=seed, all_reduce=True, first=WIRE_MODULUS - 50)
    clean = simulate(tree, 150, Network(), window=64, all_reduce=True)
    assert clean.num_resent == 0


@pytest.mark.parametrize("window", [pytest.param(16, marks=pytest.mark.test_all), 64])
def test_go_back_n_is_right_too(window: int) -> None:
    for seed in range(2):
        simulate((3,), 60, BAD, window=window, seed=seed, go_back_n=True, silence_s=2e-4)


def goodput(outcome: Outcome, num_packets: int, network: Network) -> float:
    """The slower direction's, of what the links carry."""
    return num_packets * network.packet_s / max(outcome.push_s, outcome.pull_s)


@pytest.mark.parametrize("tree", parameters([(2,), (8,), (2, 2)], [(2,)]))
def test_one_loss_in_a_thousand_costs_less_than_a_tenth(tree: tuple[int, ...]) -> None:
    clean, lossy = Network(), Network(loss=0.001)
    whole = goodput(simulate(tree, 2000, clean), 2000, clean)
    assert whole > 0.95
    assert goodput(simulate(tree, 2000, lossy), 2000, lossy) > 0.9 * whole


def test_without_losses_each_packet_crosses_each_link_once() -> None:
    outcome = simulate((4,), 500, Network())
    assert outcome.num_resent == 0
    assert outcome.num_sent == 2 * 500 * 5  # up and down, on the links of four workers and the optimizer


def test_one_seed_gives_one_outcome() -> None:
    first, again = (simulate((2,), 300, BAD, seed=7) for _ in range(2))
    assert first == again
    assert simulate((2,), 300, BAD, seed=8) != first


def test_go_back_n_waits_out_a_silence_for_each_loss() -> None:
    lossy = Network(loss=0.001)
    selective = simulate((2,), 2000, lossy)
    paper = simulate((2,), 2000, lossy, go_back_n=True)
    assert max(paper.push_s, paper.pull_s) > 100 * max(selective.push_s, selective.pull_s)
    with pytest.raises(ValueError, match="one switch"):
        simulate((2, 2), 1, lossy, go_back_n=True)
