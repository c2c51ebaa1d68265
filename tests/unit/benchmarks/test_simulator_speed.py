"""What the simulator's benchmark counts is what happens."""

from benchmarks.simulator_speed import CASES, NUM_WAITING, bare_loop, counted_records, scenario_of
from coarse.client.protocol import ClientProtocol
from coarse.proxy.protocol import ProxyProtocol
from coarse.simulation.training import simulate


def test_the_loop_ends_for_fewer_entries_than_wait_and_for_more():
    for num_events in (0, 1, NUM_WAITING, 3 * NUM_WAITING):
        bare_loop(num_events)


def test_records_are_counted_where_there_are_machines_and_nothing_stays_patched():
    before = ProxyProtocol.on_chunk, ClientProtocol.announce
    counts = {}
    for case in CASES[:2]:
        with counted_records() as records:
            simulate(scenario_of(case).job())
        counts[case.mode] = records[0]
    assert counts["dense"] > 0 == counts["allreduce"]
    assert before == (ProxyProtocol.on_chunk, ClientProtocol.announce)
