"""What sharded training should move and gain, and what its results are judged by."""

import pytest

from benchmarks.crossing import HEADER_BYTES, Received, received
from benchmarks.sharded_contenders import Weights, contenders_named, formula, named
from benchmarks.sharded_ratios import retention, times_faster
from benchmarks.sharded_tables import sharded_part
from benchmarks.sharded_targets import judge_throughput, judge_wire

FULL, LORA = Weights(all_bytes=1200, trained_bytes=1200), Weights(all_bytes=1200, trained_bytes=12)
NODES = (2, 2)
DEV = """Inter-|   Receive                            |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:      7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0
  eth0:   1000 10 0 0 0 0 0 0 500 4 0 0 0 0 0 0
"""


def throughput_rows(**seconds):
    return [
        {"contender": name.replace("_", "-"), "rate": rate, "median_step_s": step_s}
        for name, by_rate in seconds.items()
        for rate, step_s in zip(("unthrottled", "100mbit"), by_rate, strict=True)
    ]


def wire_row(contender, payload, wanted):
    excess = payload / wanted - 1
    parts = {f"{way}_{what}": value / 2 for way in ("forward", "backward")
             for what, value in (("bytes", payload), ("payload_bytes", payload))}  # fmt: skip
    formulas = {f"formula_{way}_bytes": wanted / 2 for way in ("forward", "backward")}
    return {"contender": contender, "excess": excess, **parts, **formulas}


def test_a_name_gives_its_contender_and_a_contender_its_name():
    for contender in contenders_named("fsdp-ring,fcdp-hierarchical-lora,deepspeed,deepspeed-lora"):
        assert named(contender.name) == contender


@pytest.mark.parametrize(
    "name", ["fsdp", "ddp-ring", "deepspeed-ring", "fsdp-tree", "fsdp-ring-full", "fsdp-ring-lora-"]
)
def test_an_unknown_contender_is_refused_by_name(name):
    with pytest.raises(ValueError, match="MODE-COLLECTIVE"):
        named(name)


@pytest.mark.parametrize(
    ("name", "weights", "forward", "backward"),
    [
        ("fsdp-hierarchical", FULL, 600, 1200),
        ("fsdp-ring", FULL, 900, 1800),
        ("zeropp-hierarchical", FULL, 600, 600),
        ("fcdp-hierarchical", FULL, 600, 600),
        ("hybrid-hierarchical", FULL, 0, 1200),
        ("fsdp-hierarchical-lora", LORA, 600, 606),
        ("zeropp-hierarchical-lora", LORA, 600, 6),
        ("fcdp-hierarchical-lora", LORA, 6, 6),
    ],
)
def test_each_mode_should_move_what_the_paper_says(name, weights, forward, backward):
    volume = formula(named(name), weights, NODES)
    assert (volume.forward_bytes, volume.backward_bytes) == (forward, backward)


def test_an_interface_is_read_by_its_name_and_headers_are_taken_off():
    assert received(DEV) == Received(1000, 10)
    assert received(DEV).payload_bytes == 1000 - 10 * HEADER_BYTES
    with pytest.raises(KeyError):
        received(DEV, "eth1")


def test_retention_is_a_share_of_the_own_speed_and_ratios_are_of_a_peer_at_the_same_rate():
    rows = throughput_rows(fsdp_ring=(0.2, 4.0), fcdp_hierarchical=(0.1, 0.125))
    assert retention(rows, "fcdp-hierarchical", "100mbit") == pytest.approx(0.8)
    assert times_faster(rows, "fcdp-hierarchical", "fsdp-ring", "100mbit") == pytest.approx(32)
    assert times_faster(rows, "fcdp-hierarchical", "zeropp-ring", "100mbit") is None


def test_results_that_miss_are_judged_so():
    slow = throughput_rows(
        fsdp_ring_lora=(0.2, 4.0),
        fcdp_hierarchical_lora=(0.1, 0.25),
        fcdp_hierarchical=(1, 2),
        fsdp_hierarchical=(1, 2),
    )
    assert [bool(verdict.missed) for verdict in judge_throughput({"rows": slow})] == [True, True, True, True]
    rows = [
        wire_row("fsdp-ring", 103e6, 100e6),
        wire_row("fsdp-ring-lora", 60e6, 60e6),
        wire_row("fcdp-ring-lora", 1e6, 1e6),
    ]
    assert [bool(verdict.missed) for verdict in judge_wire({"rows": rows})] == [True, True]


def test_results_that_reach_are_judged_so_and_absent_ones_are_missed_by_none():
    fast = throughput_rows(
        fsdp_ring_lora=(0.2, 4.0),
        fcdp_hierarchical_lora=(0.1, 0.11),
        fcdp_hierarchical=(0.1, 2),
        fsdp_hierarchical=(0.1, 3),
    )
    assert [verdict.reached for verdict in judge_throughput({"rows": fast})] == ["yes"] * 4
    rows = [
        wire_row("fsdp-ring", 101e6, 100e6),
        wire_row("fsdp-ring-lora", 60e6, 60e6),
        wire_row("fcdp-ring-lora", 5e5, 1e6),
    ]
    assert [verdict.reached for verdict in judge_wire({"rows": rows})] == ["yes"] * 2
    for verdict in [*judge_throughput(None), *judge_wire(None)]:
        assert verdict.reached.startswith("not measured")


def test_both_tables_name_their_commands():
    results = {
        "wire": {"command": "run wire", "rows": [wire_row("fsdp-ring", 101e6, 100e6)]},
        "throughput": {"command": "run steps", "rows": throughput_rows(fsdp_ring=(0.2, 4.0))},
    }
    part = sharded_part(results)
    assert "`run wire`" in part
    assert "| fsdp-ring | 50.500 | 50.500 | 101.000 | 100.000 | +1.0 % |" in part
    assert "| fsdp-ring | 200 | 4000 | 1.00x | 1.00x |" in part
