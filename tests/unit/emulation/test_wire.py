"""What travels between ranks and the fabric comes back as it was."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.emulation.envelope import FabricDelivery, FabricPort, Submission, unpack_delivery, unpack_submission
from coarse.emulation.order import EmulationOrder, order_json, parse_emulation_order
from coarse.emulation.site_file import FabricOrder, order_text, parse_order
from coarse.hardware.degradation import RateChange
from coarse.hardware.links import Link
from coarse.simulation.sites import Site

TIMES = st.floats(0, 1e9)
WAYS = st.sampled_from(list(FabricPort))


@given(
    TIMES, st.integers(0, 2**60), st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1),
    WAYS, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=200),
)  # fmt: skip
def test_a_submission_comes_as_it_was_sent(begin_s, nbytes, source, target, endpoint, way, priority, frame):
    sent = Submission(begin_s, nbytes, source, target, endpoint, way, priority, frame)
    assert unpack_submission(sent.pack()) == sent


@given(TIMES, WAYS, st.integers(0, 2**16 - 1), st.binary(max_size=200))
def test_a_delivery_comes_as_it_was_sent(due_s, way, peer, frame):
    sent = FabricDelivery(due_s, way, peer, frame)
    assert unpack_delivery(sent.pack()) == sent


def test_the_fabric_gets_the_site_that_the_ranks_have():
    links = (
        Link(name="a", latency_s=1e-6, bytes_per_s=1e9, table=((10, 1e-6), (100, 1e-5))),
        Link(name="b", latency_s=0.0, bytes_per_s=2e9),
    )
    site = Site(
        links=links,
        push={(0, 0): (0,), (1, 0): (0, 1)},
        pull={(0, 0): (1,)},
        between_devices={},
        between_workers={(0, 1): ()},
        adder_bytes_per_s=3e9,
        to_host=((0,), (1,)),
        from_host=((1, 0), ()),
    )
    order = FabricOrder(
        site=site,
        run="r",
        process_ids=(7, 8),
        worker_nodes=(0, 1),
        rate_changes=(RateChange(0.5, 1, 1e8), RateChange(2.0, 0, 1e9)),
    )
    assert parse_order(order_text(order)) == order


@pytest.fixture
def order():
    return EmulationOrder(
        machine="aws-p3",
        model="resnet50",
        gpu="v100",
        batch=64,
        precision="fp32",
        mode="coarse",
        num_workers=2,
        num_devices=2,
        num_iterations=2,
    )


def test_ranks_simulate_the_job_that_was_decided(order):
    decided = replace(order, policy="devices").decided()
    assert parse_emulation_order(order_json(decided)) == decided
    job = parse_emulation_order(order_json(decided)).job()
    assert job == decided.job()
    assert job.num_to_devices == len(job.gradients)


def test_ranks_are_told_what_degrades_how_often_to_measure_and_by_which_policy_to_decide(order):
    asked = replace(order, degradations=("socket0 crossing=0.5@1", "gpu? up=0.1@2"), profile_every=7)
    told = parse_emulation_order(order_json(replace(asked, policy="paper").decided()))
    job = told.job()
    assert (told.policy, job.profile_every) == ("paper", 7)
    assert [change.at_s for change in job.rate_changes] == [1.0] + [2.0] * 8
    assert replace(asked, mode="allreduce", num_devices=0).decided().decide() is None


def test_a_job_without_devices_has_one_rank_that_holds_memory(order):
    alone = replace(order, mode="allreduce", num_devices=0).decided()
    table = alone.partition(alone.job())
    assert (alone.num_ranks, table.num_workers, table.num_devices) == (3, 2, 1)
    assert table.local_proxies == (0, 0)
