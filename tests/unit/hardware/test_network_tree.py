"""Networks that are trees of switches: what transfers between nodes of one leaf, and of several, have and take."""

from dataclasses import replace

import pytest

from benchmarks.one_for_all import both
from coarse.errors import ConfigError
from coarse.hardware.compute import compute_profile
from coarse.hardware.fabric import Fabric
from coarse.hardware.links import path_alone_s
from coarse.hardware.machine import Machine
from coarse.hardware.machine_field import changed_machine, field_names
from coarse.hardware.machine_file import load_machine, save_machine
from coarse.hardware.models import Precision, resnet50
from coarse.hardware.network_tree import TreeLevel
from coarse.hardware.presets import load_preset, preset_path
from coarse.protocol.toml import TomlFile
from coarse.simulation.scenario import Scenario
from coarse.simulation.training import simulate

NBYTES = 1 << 30
FLAT = replace(load_preset("fcdp-a40-1gbe"), num_nodes=8)
PER_NODE = len(FLAT.tree.gpus)
RATE = FLAT.network.reached_bytes_per_s
LEAVES = (TreeLevel(name="leaf", nodes_per_switch=2, oversubscription=4, hop_latency_s=3e-6),)
SPINES = TreeLevel(name="spine", nodes_per_switch=4, oversubscription=2, hop_latency_s=5e-6)


def on_tree(*levels: TreeLevel) -> Machine:
    return replace(FLAT, tree_levels=levels)


def path(machine: Machine, node: int, other_node: int) -> tuple[int, ...]:
    return machine.path(f"gpu{node * PER_NODE}", f"gpu{other_node * PER_NODE}")


def alone_s(machine: Machine, node: int, other_node: int, nbytes: int) -> float:
    return path_alone_s([machine.links[link] for link in path(machine, node, other_node)], nbytes)


def together_s(machine: Machine, pairs: list[tuple[int, int]]) -> float:
    """Seconds until transfers between these nodes, begun together, have all ended."""
    fabric = Fabric(machine.links)
    for number, pair in enumerate(pairs):
        fabric.start(number, path(machine, *pair), NBYTES, 0.0)
    ended_s = 0.0
    while (due_s := fabric.next_s()) is not None:
        ended_s = max([ended_s, *(end_s for end_s, _ in fabric.advance(due_s))])
    return ended_s


def test_nodes_of_one_leaf_have_what_they_have_without_a_tree():
    assert alone_s(on_tree(*LEAVES), 0, 1, NBYTES) == alone_s(FLAT, 0, 1, NBYTES)


def test_a_crossing_costs_its_latency_up_and_down_and_has_the_uplinks_rate():
    machine = on_tree(*LEAVES)
    assert alone_s(machine, 1, 2, 0) == pytest.approx(alone_s(FLAT, 1, 2, 0) + 2 * 3e-6)
    assert alone_s(machine, 1, 2, NBYTES) == pytest.approx(NBYTES / (2 * RATE / 4), rel=1e-3)


@pytest.mark.parametrize("factor", [1, 2, 3, 8])
def test_all_nodes_of_a_leaf_share_its_uplinks(factor: int):
    leaf = TreeLevel(name="leaf", nodes_per_switch=4, oversubscription=factor)
    took_s = together_s(on_tree(leaf), [(node, 4 + node) for node in range(4)])
    assert took_s == pytest.approx(4 * NBYTES / (4 * RATE / factor), rel=1e-3)


def test_directions_share_nothing():
    machine = on_tree(*LEAVES)
    assert together_s(machine, [(0, 2), (3, 1)]) == pytest.approx(together_s(machine, [(0, 2)]), rel=1e-9)


def test_each_level_divides_what_comes_from_the_one_below():
    machine = on_tree(*LEAVES, SPINES)
    assert alone_s(machine, 0, 2, 0) == pytest.approx(alone_s(FLAT, 0, 2, 0) + 2 * 3e-6)  # two leaves of one spine
    assert alone_s(machine, 0, 4, 0) == pytest.approx(alone_s(FLAT, 0, 4, 0) + 2 * (3e-6 + 5e-6))
    names = [machine.links[link].name for link in path(machine, 3, 4)]
    assert names[names.index("node3 network up") + 1 : names.index("node4 network down")] == [
        "leaf1 up", "spine0 up", "spine1 down", "leaf2 down",
    ]  # fmt: skip
    rates = {link.name: link.bytes_per_s for link in machine.links}
    assert rates["leaf0 up"] == pytest.approx(2 * RATE / 4)
    assert rates["spine1 down"] == pytest.approx(4 * RATE / 4 / 2)


def test_the_last_switch_may_have_fewer_nodes():
    machine = on_tree(TreeLevel(name="leaf", nodes_per_switch=3))
    assert {link.name for link in machine.links if "leaf" in link.name} == {
        f"leaf{number} {role}" for number in range(3) for role in ("up", "down")
    }


@pytest.mark.parametrize(("mode", "within"), [("allreduce", 0.03), ("coarse", 0.08)])
def test_where_one_stands_for_all_the_ring_crosses_a_leaf_s_uplinks_once_each_way(mode: str, within: float):
    """A leaf of two nodes whose uplinks carry a quarter of what one node sends: they are the narrow place."""
    leaf = TreeLevel(name="leaf", nodes_per_switch=2, oversubscription=8)
    machine, model = replace(load_preset("aws-p3"), num_nodes=4, tree_levels=(leaf,)), resnet50()
    asked = Scenario(
        machine=machine, model=model, profile=compute_profile(model, "v100", 8, Precision.FP32), mode=mode,
        num_workers=16, num_nodes=4,
    )  # fmt: skip
    one, each = (simulate(job) for job in both(asked, 0.0 if mode == "allreduce" else 1.0))
    assert one.iteration_s == pytest.approx(each.iteration_s, rel=within)
    assert one.link_bytes["leaf0 up"] == pytest.approx(each.link_bytes["leaf0 up"], rel=0.01)


def test_a_file_keeps_the_levels_and_each_field_can_be_changed(tmp_path):
    machine = on_tree(*LEAVES, SPINES)
    save_machine(machine, tmp_path / "machine.toml")
    assert load_machine(tmp_path / "machine.toml") == machine
    toml = TomlFile.read(tmp_path / "machine.toml")
    assert {"tree_level.leaf.oversubscription", "tree_level.spine.hop_latency_us"} <= set(field_names(toml))
    changed = changed_machine(toml, {"tree_level.leaf.oversubscription": 2, "tree_level.spine.hop_latency_us": 7})
    assert [level.oversubscription for level in changed.tree_levels] == [2, 2]
    assert changed.tree_levels[1].hop_latency_s == pytest.approx(7e-6)


LEVEL = '[[tree_level]]\nname = "leaf"\nnodes_per_switch = 2\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LEVEL.replace("2", "0"), "nodes_per_switch must be a whole number of at least 1, got 0"),
        (LEVEL.replace("2", '"2"'), "at least 1, got '2'"),
        (f"{LEVEL}oversubscription = 0\n", "oversubscription must be a number above 0"),
        (f"{LEVEL}oversubscription = true\n", "oversubscription must be a number above 0"),
        (f"{LEVEL}hop_latency = 1\n", "no known unit; write one of hop_latency_us"),
        (f"{LEVEL}latency_us = 1\n", "unknown key 'tree_level.0.latency_us'"),
        ('[[tree_level]]\nname = "leaf"\n', "'nodes_per_switch' is missing"),
        ("[[tree_level]]\nnodes_per_switch = 2\n", "'name' is missing"),
        (LEVEL.replace("leaf", "leaf1"), "must not end with a digit"),
        (LEVEL + LEVEL, "'leaf' stands twice"),
        (LEVEL + LEVEL.replace("leaf", "spine").replace("2", "3"), "a multiple of 2, that of 'leaf' below it"),
        (LEVEL + LEVEL.replace("leaf", "spine"), "a multiple of 2, that of 'leaf' below it, and more, got 2"),
        ("[tree_level]\nnodes_per_switch = 2\n", r"one \[\[tree_level\]\] table"),
    ],
)
def test_a_tree_that_cannot_be_is_refused_with_file_and_line(text: str, said: str, tmp_path):
    file = tmp_path / "machine.toml"
    file.write_text(f"{preset_path('aws-p3').read_text()}\n{text}")
    with pytest.raises(ConfigError, match=said) as found:
        load_machine(file)
    assert f"{file}:" in str(found.value)


def test_an_error_between_levels_names_the_line_of_the_one_above(tmp_path):
    file = tmp_path / "machine.toml"
    for stated, key in (("leaf", 'name = "leaf"'), ("spine", "nodes_per_switch = 2")):
        text = f"{preset_path('aws-p3').read_text()}\n{LEVEL}{LEVEL.replace('leaf', stated)}"
        file.write_text(text)
        line = len(text[: text.rindex(key)].splitlines()) + 1
        with pytest.raises(ConfigError, match=rf"machine\.toml:{line}: "):
            load_machine(file)


def test_a_tree_without_a_network_is_refused():
    with pytest.raises(ConfigError, match="a tree_level is of the network, and the machine has none"):
        replace(FLAT, network=None, num_nodes=1, tree_levels=LEAVES)
