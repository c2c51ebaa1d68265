"""Nodes that differ: their links, their compute, and the files that state them."""

from dataclasses import replace

import pytest

from benchmarks.one_for_all import both
from coarse.errors import ConfigError
from coarse.hardware.compute import compute_profile
from coarse.hardware.machine import Machine
from coarse.hardware.machine_field import changed_machine, field_names
from coarse.hardware.machine_file import load_machine, save_machine
from coarse.hardware.models import Precision, resnet50
from coarse.hardware.network_tree import TreeLevel
from coarse.hardware.presets import load_preset, preset_path
from coarse.hardware.unlike_nodes import UnlikeNodes, node_ranges
from coarse.hardware.wire import Wire
from coarse.luwu.simulation.scenario import PagedScenario
from coarse.protocol.toml import TomlFile
from coarse.simulation.scenario import Scenario
from coarse.simulation.sharded.modes import ShardedPolicy
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.simulation.training import simulate
from coarse.strategy.sharding import Fcdp

P3 = replace(load_preset("aws-p3"), num_nodes=4)
SLOW_WIRE = Wire(name="old nic", bytes_per_s=P3.network.bytes_per_s / 3, latency_s=40e-6, duplex_bytes_per_s=1e9)
OLD = UnlikeNodes(name="old", ranges=((1, 2),), compute_slow_down=1.5, network=SLOW_WIRE, nvlink=False)
MIXED = replace(P3, unlike_nodes=(OLD,))


def rates(machine: Machine, source: str, target: str) -> dict[str, float]:
    return {machine.links[link].name: machine.links[link].bytes_per_s for link in machine.path(source, target)}


def scenario(machine: Machine, mode: str, **more: object) -> Scenario:
    model = resnet50()
    return Scenario(
        machine=machine, model=model, profile=compute_profile(model, "v100", 64, Precision.FP32), mode=mode,
        num_workers=16, num_nodes=4, **more,
    )  # fmt: skip


def test_a_transfer_between_unlike_nodes_takes_the_wire_of_each():
    found = rates(MIXED, "gpu0", "gpu8")
    assert found["node0 network up"] == P3.network.bytes_per_s
    assert found["node1 network down"] == P3.network.bytes_per_s / 3
    assert found["node1 network duplex"] == 1e9
    assert "node0 network duplex" not in found


def test_a_node_whose_nvlinks_are_off_goes_by_its_tree():
    assert list(rates(MIXED, "gpu0", "gpu2")) == ["node0 gpu0 - gpu2 up"]
    assert next(iter(rates(MIXED, "gpu8", "gpu10"))) == "node1 gpu0 up"
    with pytest.raises(ConfigError, match="no NVLink path from gpu8 to gpu10"):
        MIXED.path("gpu8", "gpu10", kind="nvlink")


def test_the_other_nodes_have_the_links_that_they_have_without_unlike_ones():
    unlike = {link.name: link for link in MIXED.links}
    alike = {link.name: link for link in P3.links}
    for node in (0, 3):
        names = [name for name in alike if name.startswith(f"node{node} ")]
        assert {name: unlike[name] for name in names} == {name: alike[name] for name in names}
    assert [MIXED.links[number] for number in range(len(MIXED.links))] == list(MIXED.links)
    assert len(unlike) == len(MIXED.links)


def test_workers_of_a_slower_node_compute_as_much_longer_and_stragglers_longer_still():
    factors = scenario(MIXED, "allreduce").slow_down_of_workers
    assert factors == (1.0,) * 4 + (1.5,) * 8 + (1.0,) * 4
    own = (2.0,) + (1.0,) * 4 + (2.0,) + (1.0,) * 10
    factors = scenario(MIXED, "allreduce", slow_downs=own).slow_down_of_workers
    assert (factors[0], factors[4], factors[5]) == (2.0, 1.5, 3.0)
    assert scenario(P3, "allreduce").slow_down_of_workers == ()


def test_workers_of_other_nodes_wait_for_those_that_compute_longer():
    report = simulate(scenario(replace(P3, unlike_nodes=(replace(OLD, network=None),)), "allreduce").job())
    compute_s = {row.worker // 4: row.compute_s for row in report.steady()}
    assert [compute_s[1], compute_s[2]] == pytest.approx([1.5 * compute_s[0]] * 2)
    idle_s = {row.worker // 4: row.idle_s for row in report.steady()}
    assert idle_s[0] == pytest.approx(0.5 * compute_s[0], rel=0.05)
    assert idle_s[1] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(("mode", "within"), [("allreduce", 0.03), ("coarse", 0.12)])
def test_where_one_stands_for_all_it_is_of_the_slowest_nodes(mode: str, within: float):
    one, each = (simulate(job) for job in both(scenario(MIXED, mode), 0.0 if mode == "allreduce" else 1.0))
    alike, _ = (simulate(job) for job in both(scenario(P3, mode), 0.0 if mode == "allreduce" else 1.0))
    assert one.iteration_s == pytest.approx(each.iteration_s, rel=within)
    assert one.iteration_s > 1.2 * alike.iteration_s


def test_a_file_keeps_unlike_nodes_and_each_field_can_be_changed(tmp_path):
    machine = replace(MIXED, unlike_nodes=(OLD, UnlikeNodes(name="other", ranges=((0, 0), (3, 3)))))
    save_machine(machine, tmp_path / "machine.toml")
    assert load_machine(tmp_path / "machine.toml") == machine
    toml = TomlFile.read(tmp_path / "machine.toml")
    assert {"node.old.compute_slow_down", "node.old.network_wire", "node.other.nvlink_on"} <= set(field_names(toml))
    assert changed_machine(toml, {"node.old.compute_slow_down": 3}).compute_slow_down(2) == 3


def test_numbers_are_numbers_or_ranges():
    assert node_ranges([3, "8-15", "4 - 4"]) == ((3, 3), (8, 15), (4, 4))


NODE = '[[node]]\nname = "old"\nnumbers = [1]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[node]]\nname = "old"\n', "numbers must be a list of numbers from 0 and of ranges"),
        ("[[node]]\nnumbers = [1]\n", "'name' of a node is missing"),
        (NODE.replace("[1]", "[]"), "numbers must be a list"),
        (NODE.replace("[1]", '"1"'), "numbers must be a list"),
        (NODE.replace("[1]", "[-1]"), "got -1 in"),
        (NODE.replace("[1]", "[true]"), "got True in"),
        (NODE.replace("[1]", '["3-2"]'), "got '3-2' in"),
        (NODE.replace("[1]", '["1-"]'), "got '1-' in"),
        (NODE.replace("[1]", "[1, 4]"), r"must lie in 0..3, got 4; correct them, or set num_nodes = 5"),
        (NODE.replace("[1]", '["0-99999999999"]'), r"must lie in 0..3, got 99999999999"),
        (NODE.replace("[1]", '[1, "0-2"]'), "number 1 stands in node 'old' and in 'old', or twice in one"),
        (NODE + NODE.replace("old", "new"), "number 1 stands in node 'old' and in 'new'"),
        (NODE + NODE.replace("1", "2"), "node 'old' stands twice"),
        (f"{NODE}compute_slow_down = 0\n", "compute_slow_down must be a number above 0"),
        (f'{NODE}network_wire = "nix"\n', r"network_wire must name a \[\[wire\]\] of the file"),
        (f"{NODE}nvlink_on = 1\n", "nvlink_on must be true or false, got 1"),
        (f"{NODE}nvlink = false\n", "unknown key 'node.0.nvlink'; did you mean nvlink_on"),
    ],
)
def test_nodes_that_cannot_be_are_refused_with_file_and_line(text: str, said: str, tmp_path):
    file = tmp_path / "machine.toml"
    stated = preset_path("aws-p3").read_text().replace('name = "aws-p3"', 'name = "aws-p3"\nnum_nodes = 4', 1)
    file.write_text(f"{stated}\n{text}")
    with pytest.raises(ConfigError, match=said) as found:
        load_machine(file)
    assert f"{file}:" in str(found.value)


@pytest.mark.parametrize(
    ("second", "key"),
    [
        ('name = "old"\nnumbers = [2]\n', 'name = "old"'),
        ('name = "new"\nnumbers = [4]\n', "numbers = [4]"),
        ('name = "new"\nnumbers = [1]\n', "numbers = [1]"),
        ('name = "new"\nnumbers = [2]\nnetwork_wire = "nix"\n', 'network_wire = "nix"'),
    ],
)
def test_an_error_of_one_of_several_nodes_names_its_line_once(second: str, key: str, tmp_path):
    file = tmp_path / "machine.toml"
    stated = preset_path("aws-p3").read_text().replace('name = "aws-p3"', 'name = "aws-p3"\nnum_nodes = 4', 1)
    text = f"{stated}\n{NODE}[[node]]\n{second}"
    file.write_text(text)
    line = len(text[: text.rindex(key)].splitlines()) + 1
    with pytest.raises(ConfigError) as found:
        load_machine(file)
    assert str(found.value).startswith(f"{file}:{line}: ")
    assert str(found.value).count(str(file)) == 1


def test_a_machine_with_fewer_nodes_than_it_names_is_refused():
    with pytest.raises(ConfigError, match=r"must lie in 0..1, got 2; correct them, or set num_nodes = 3"):
        replace(MIXED, num_nodes=2)


def test_a_network_wire_of_some_nodes_needs_one_of_the_others():
    with pytest.raises(ConfigError, match="'old' has a network_wire and the machine none; set network_wire"):
        replace(P3, num_nodes=1, network=None, unlike_nodes=(replace(OLD, ranges=((0, 0),)),))


def test_sharded_training_goes_at_the_pace_of_the_slowest_node_that_it_uses():
    def forward_s(*groups: UnlikeNodes) -> float:
        machine = replace(load_preset("fcdp-a40-10gbe"), num_nodes=4, unlike_nodes=groups)
        policy = ShardedPolicy(sharding=Fcdp())
        asked = ShardedScenario(
            machine=machine, model_name="gpt-10b", policy=policy, batch=8, num_nodes=2, gpus_per_node=8
        )
        return sum(unit.forward_s for unit in asked.units)

    slow = UnlikeNodes(name="slow", ranges=((1, 1),), compute_slow_down=1.5)
    assert forward_s(slow) == pytest.approx(1.5 * forward_s())
    assert forward_s(replace(slow, ranges=((2, 3),))) == forward_s()


@pytest.mark.parametrize(
    "more", [{"unlike_nodes": (OLD,)}, {"tree_levels": (TreeLevel(name="leaf", nodes_per_switch=2),)}]
)
def test_predictions_of_luwu_refuse_what_they_do_not_model(more):
    machine = replace(load_preset("luwu"), num_nodes=4, **more)
    with pytest.raises(ConfigError, match=r"states \[\[tree_level\]\]s or \[\[node\]\]s.*name a machine without them"):
        PagedScenario(machine=machine, model_name="opt-1.3b", num_workers=2, batch=1)
