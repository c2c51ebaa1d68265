"""LuWu's baselines in virtual time: bytes as formulas have them, never faster than their resources, and what fits."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coarse.errors import CapacityError, ConfigError
from coarse.hardware.gpt import OPT_SHAPES, gpt
from coarse.hardware.presets import machine_named
from coarse.simulation.paged.baselines import Baseline, BaselineCluster, in_turn_s, simulate_baseline
from coarse.simulation.paged.capacity import LUWU, MODES
from coarse.simulation.paged.cluster import PagedTraining
from coarse.simulation.paged.scenario import PagedScenario, modes_of

CLUSTER = BaselineCluster(
    num_workers=8, worker_flops_per_s=183e12, gpu_memory_bytes_per_s=1.5e12, link_bytes_per_s=12.5e9,
    pcie_bytes_per_s=12e9, disk_bytes_per_s=3.25e9,
)  # fmt: skip
TRAINING = PagedTraining(num_blocks=12, block_elements=1_000_000, tokens=4096)


def scenario(model: str = "opt-30b", batch: int = 8, workers: int = 8) -> PagedScenario:
    return PagedScenario(machine=machine_named("luwu"), model_name=model, num_workers=workers, batch=batch)


@pytest.mark.parametrize("num_workers", [1, 2, 4, 8, 64])
@pytest.mark.parametrize("prefetch", [False, True])
def test_bytes_are_those_of_the_formulas(num_workers: int, prefetch: bool) -> None:
    cluster = replace(CLUSTER, num_workers=num_workers, prefetch=prefetch)
    size = 2 * TRAINING.num_parameters
    others = (num_workers - 1) / num_workers
    gathered = size / num_workers if num_workers > 1 else 0.0
    wanted = {
        Baseline.ZERO3: (3 * others * size, 3 * others * size),
        Baseline.ZERO_INFINITY: (3 * others * size, 3 * others * size),
        Baseline.SWITCHML: (2 * size, 2 * size),
        Baseline.SHARP: (2 * gathered + size * (num_workers > 1), 2 * others * size + gathered),
    }
    for mode, (sent, received) in wanted.items():
        step = simulate_baseline(mode, cluster, TRAINING)
        assert step.sent_bytes == pytest.approx(sent), mode
        assert step.received_bytes == pytest.approx(received), mode


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(Baseline), num_workers=st.integers(1, 64), tokens=st.integers(1, 1 << 16),
    num_blocks=st.integers(1, 20), link=st.floats(1e8, 1e11), disk=st.floats(1e8, 1e11), prefetch=st.booleans(),
)  # fmt: skip
def test_no_step_is_faster_than_its_resources(
    mode: Baseline, num_workers: int, tokens: int, num_blocks: int, link: float, disk: float, prefetch: bool
) -> None:
    cluster = replace(
        CLUSTER, num_workers=num_workers, link_bytes_per_s=link, disk_bytes_per_s=disk, prefetch=prefetch
    )
    training = PagedTraining(num_blocks=num_blocks, block_elements=100_000, tokens=tokens)
    step = simulate_baseline(mode, cluster, training)
    longest_s = sum(step.busy_s.values())
    assert max(step.busy_s.values()) <= step.step_s * (1 + 1e-9)
    assert step.step_s <= longest_s * (1 + 1e-9)
    assert step.ends_s["forward"] < step.ends_s["backward"] <= step.ends_s["optimizer"] == step.step_s
    if not prefetch:
        least_s = in_turn_s(step.busy_s)  # the optimizer's first block overlaps with none
        assert least_s <= step.step_s * (1 + 1e-9) <= (1 + 2 / num_blocks) * least_s * (1 + 2e-9)


@pytest.mark.parametrize("mode", [Baseline.ZERO3, Baseline.ZERO_INFINITY, Baseline.SHARP])
def test_prefetch_hides_what_it_can(mode: Baseline) -> None:
    training = PagedTraining(num_blocks=48, block_elements=600_000_000, tokens=8192)
    alone, ahead = (simulate_baseline(mode, replace(CLUSTER, prefetch=on), training) for on in (False, True))
    assert ahead.step_s < 0.85 * alone.step_s


def test_luwu_grows_with_its_workers_and_zero_infinity_more_than_that() -> None:
    luwu = [scenario(workers=count).step(LUWU).step_s for count in (1, 8)]
    assert luwu[0] == luwu[1]
    own = [scenario(workers=count).step("zero-infinity").step_s for count in (1, 2, 4, 8)]
    assert own == sorted(own, reverse=True)
    assert own[0] > 2 * own[3]


def test_a_headline_of_the_paper_is_predicted() -> None:
    step = scenario("opt-175b", 16).step("zero-infinity")
    assert step.flops_per_s == pytest.approx(46e12, rel=0.05)  # 183 / 3.98, figure 11a
    assert 1 - step.idle_share == pytest.approx(0.23, rel=0.1)  # 2.1


@pytest.mark.parametrize("mode", MODES)
def test_more_workers_never_train_a_smaller_model(mode: str) -> None:
    names = list(OPT_SHAPES)
    found = [names.index(scenario(workers=count).capacity.largest_model(mode)) for count in (1, 2, 4, 8, 16, 64)]
    assert found == sorted(found)
    if mode in (LUWU, Baseline.SWITCHML):
        assert len(set(found)) == 1
    else:
        assert found[0] < found[3]


def test_figure_10_at_eight_workers() -> None:
    capacity = scenario().capacity
    assert {mode: capacity.largest_model(mode) for mode in MODES} == {
        "luwu": "opt-1t", "zero-infinity": "opt-175b", "zero3": "opt-13b", "switchml": "opt-1.3b", "sharp": "opt-175b",
    }  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_the_largest_batch_fits_and_twice_of_it_does_not(mode: str) -> None:
    made = scenario("opt-1.3b")
    largest = made.capacity.largest_batch(mode, made.model)
    assert made.capacity.fits(mode, made.model, largest)
    assert not made.capacity.fits(mode, made.model, 2 * largest)
    with pytest.raises(CapacityError, match=f"{mode} needs of a GPU .* lower the batch to {largest}"):
        replace(made, batch=2 * largest).require_fit(mode)


def test_the_shapes_are_those_of_the_paper() -> None:
    for name in OPT_SHAPES:
        said = float(name.removeprefix("opt-").rstrip("bt")) * (1000 if name.endswith("t") else 1)
        assert gpt(name, 1024).num_parameters / 1e9 == pytest.approx(said, rel=0.03)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch": 0}, "batch must lie in"),
        ({"num_workers": 0}, "workers must lie in"),
        ({"num_workers": 1 << 20}, "workers must lie in"),
        ({"peak_share": 0.0}, "peak_share must lie in"),
        ({"model_name": "opt-31b"}, "unknown GPT 'opt-31b'"),
        ({"machine": machine_named("aws-p3")}, "no network|states no"),
        ({"machine": machine_named("fcdp-a40-10gbe")}, r"states no \[disks\]"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        replace(scenario(), **change)


def test_modes_are_named_once_and_known() -> None:
    assert modes_of("luwu, zero3,luwu") == ("luwu", "zero3")
    with pytest.raises(ConfigError, match="of luwu, zero-infinity, zero3, switchml, sharp, got 'dense'"):
        modes_of("luwu,dense")
