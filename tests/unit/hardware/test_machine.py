"""Paths through a machine, and places on it."""

from dataclasses import replace

import pytest

from coarse.errors import ConfigError
from coarse.hardware.coherence import Coherence
from coarse.hardware.placement import place
from coarse.hardware.presets import load_preset, preset_names

P3 = load_preset("aws-p3")


def names(machine, source, target, **options):
    return [machine.links[link].name for link in machine.path(source, target, **options)]


def test_link_names_tell_links_apart():
    for name in preset_names():
        links = [link.name for link in load_preset(name).links]
        assert len(set(links)) == len(links)


def test_a_staged_transfer_goes_up_to_the_host_even_under_one_switch():
    assert names(P3, "gpu0", "gpu1", kind="pcie") == [
        "gpu0 up", "gpu0 duplex", "switch0 up", "switch0 turn", "switch0 down", "gpu1 down", "gpu1 duplex",
    ]  # fmt: skip


def test_true_peer_to_peer_turns_in_the_switch():
    path = names(load_preset("sdsc-p100"), "gpu0", "gpu1", kind="pcie")
    assert path == ["gpu0 up", "gpu0 duplex", "gpu1 down", "gpu1 duplex"]


def test_every_pair_has_a_path_and_the_way_back_is_its_mirror():
    for name in preset_names():
        machine = load_preset(name)
        ends = (*machine.gpus[:9], *machine.memories)
        for source in ends:
            assert machine.path(source, source) == ()
            for target in ends:
                there, back = names(machine, source, target), names(machine, target, source)
                swapped = [{"up": "down", "down": "up"}.get(link.split()[-1], "both") for link in there]
                kinds = [{"up": "up", "down": "down"}.get(link.split()[-1], "both") for link in back]
                assert sorted(swapped) == sorted(kinds)


def test_auto_takes_nvlink_where_there_is_one_and_it_is_on():
    assert names(P3, "gpu0", "gpu3") == ["gpu0 - gpu3 up"]
    assert names(P3, "gpu3", "gpu0") == ["gpu0 - gpu3 down"]
    assert names(P3, "gpu0", "gpu7") == names(P3, "gpu0", "gpu7", kind="pcie")
    without = replace(P3, nvlink=False)
    assert names(without, "gpu0", "gpu3") == names(without, "gpu0", "gpu3", kind="pcie")


def test_cci_joins_all_that_may_be_devices_of_a_node():
    assert names(P3, "gpu1", "gpu7", kind="cci") == ["gpu1 cci up", "gpu7 cci down"]
    assert names(load_preset("cxl-cz120"), "memory0", "memory3", kind="cci") == ["memory0 cci up", "memory3 cci down"]


@pytest.mark.parametrize(
    ("machine", "source", "target", "kind", "words"),
    [
        (P3, "gpu0", "gpu7", "nvlink", "no NVLink path from gpu0 to gpu7"),
        (replace(P3, cci=False), "gpu0", "gpu1", "cci", "no CCI path"),
        (replace(P3, num_nodes=2), "gpu0", "gpu8", "cci", "no CCI path"),
        (P3, "gpu0", "gpu8", "auto", "no endpoint 'gpu8'"),
        (P3, "gpu0", "memory0", "auto", "0 memory devices"),
        (P3, "gpu0", "gpu1", "isa", "kind of a path must be one of"),
        (load_preset("luwu"), "gpu0", "gpu1", "load", "state \\[coherence\\]"),
        (load_preset("cxl-cz120"), "memory0", "memory1", "load", "a GPU loads"),
    ],
)
def test_what_cannot_be_reached_is_refused_with_a_remedy(machine, source, target, kind, words):
    with pytest.raises(ConfigError, match=words):
        machine.path(source, target, kind=kind)


def test_nodes_are_joined_by_their_network_cards_alone():
    two = replace(P3, num_nodes=2)
    path = names(two, "gpu7", "gpu8")
    assert path[path.index("node0 network up") :][:2] == ["node0 network up", "node1 network down"]
    assert {name.split()[0] for name in path} == {"node0", "node1"}
    assert (two.node_of("gpu7"), two.node_of("gpu8"), len(two.gpus)) == (0, 1, 16)
    assert [link.latency_s for link in two.links[: len(two.links) // 2]] == [link.latency_s for link in P3.links]


def test_loads_and_stores_slow_down_with_sharers():
    coherence = Coherence(load_bytes_per_s=10.0, store_bytes_per_s=20.0, latency_s=1.0, sharer_growth=0.5)
    machine = replace(load_preset("coarse-fpga"), coherence=coherence, num_sharers=3)
    load = machine.links[machine.path("memory0", "gpu0", kind="load")[0]]
    store = machine.links[machine.path("gpu0", "memory0", kind="store")[0]]
    assert (load.bytes_per_s, store.bytes_per_s, load.latency_s) == (5.0, 10.0, 2.0)


@pytest.mark.parametrize(("key", "value"), [("num_nodes", 0), ("num_nodes", 1.5), ("num_sharers", 0), ("name", "")])
def test_a_machine_is_checked_at_birth(key, value):
    with pytest.raises(ConfigError) as caught:
        replace(P3, **{key: value})
    assert caught.value.key == key


def test_half_the_gpus_play_devices_and_each_shares_a_switch_with_its_worker():
    for num_pairs in (1, 2, 4):
        placement = place(P3, num_workers=num_pairs, num_devices=num_pairs)
        assert placement.workers == ("gpu0", "gpu2", "gpu4", "gpu6")[:num_pairs]
        assert placement.devices == ("gpu1", "gpu3", "gpu5", "gpu7")[:num_pairs]
        assert placement.local_devices == tuple(range(num_pairs))


def test_two_workers_share_a_device_of_their_socket():
    placement = place(P3, num_workers=4, num_devices=2)
    assert placement.local_devices == (0, 0, 1, 1)
    for worker, device in zip(placement.workers, placement.local_devices, strict=True):
        sockets = [P3.tree.socket_of(end) for end in (worker, placement.devices[device])]
        assert sockets[0] == sockets[1]
    assert len({*placement.workers, *placement.devices}) == 6


def test_nodes_get_equal_parts_and_local_devices_of_their_own():
    machine = replace(P3, num_nodes=2)
    placement = place(machine, num_workers=8, num_devices=4, num_nodes=2)
    for worker, device in zip(placement.workers, placement.local_devices, strict=True):
        assert machine.node_of(worker) == machine.node_of(placement.devices[device])
    table = placement.partition_table(machine)
    assert (table.num_workers, table.num_devices, table.local_proxies) == (8, 4, placement.local_devices)


def test_memory_devices_of_the_machine_are_used_before_gpus():
    placement = place(load_preset("cxl-cz120"), num_workers=4, num_devices=4)
    assert placement.devices == ("memory0", "memory1", "memory2", "memory3")
    assert placement.workers == ("gpu0", "gpu1", "gpu2", "gpu3")


def test_workers_without_devices_stand_where_they_would_beside_them():
    with_devices, without = (place(P3, num_workers=4, num_devices=count) for count in (4, 0))
    assert without.workers == with_devices.workers
    assert without.local_devices == ()


@pytest.mark.parametrize(
    ("counts", "key"),
    [
        ({"num_workers": 6, "num_devices": 3}, "num_workers"),
        ({"num_workers": 0, "num_devices": 1}, "num_workers"),
        ({"num_workers": 1, "num_devices": -1}, "num_devices"),
        ({"num_workers": 2, "num_devices": 2, "num_nodes": 2}, "num_nodes"),
    ],
)
def test_a_rank_without_a_device_is_refused(counts, key):
    with pytest.raises(ConfigError) as caught:
        place(P3, **counts)
    assert caught.value.key == key
