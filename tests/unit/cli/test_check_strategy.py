"""`coarse check --strategy` on strategies that are right, and on one for each thing that can be wrong."""

import re

import pytest
from typer.testing import CliRunner

from coarse.cli import check
from coarse.simulation.checks import plans, sums
from tests.support.launch import REPOSITORY

HEAD = """
import itertools
from dataclasses import dataclass, replace
from coarse.strategy import By, Coarse, ConfigError, Exchanges, Round, Strategy, central, on_each_node, ring_of_all

@dataclass(frozen=True, kw_only=True)
class Mine(Coarse):
"""
WRONG = {
    "it raises": ("def plan(self, tensor, cluster, facts): return facts[700]", r"Mine.plan raised IndexError"),
    "no plan": ("def plan(self, tensor, cluster, facts): return 3", "Mine.plan: wanted a Plan, got 3"),
    "a home elsewhere": (
        "def plan(self, tensor, cluster, facts):\n"
        "        return ring_of_all(tensor, cluster, [0] * cluster.num_workers, 1000)",
        "has its home on device 0, and reaches",
    ),
    "a worker that nobody adds": (
        "def plan(self, tensor, cluster, facts):\n"
        "        found = super().plan(tensor, cluster, facts)\n"
        "        return replace(found, adds=tuple(() for _ in found.adds))",
        r"nobody adds \[0",
    ),
    "a count": (
        "number = itertools.count()\n    def plan(self, tensor, cluster, facts):\n"
        "        return super().plan(tensor._replace(key=next(Mine.number)), cluster, facts)",
        "gives two ranks two plans",
    ),
    "an order of hashes": (
        "def plan(self, tensor, cluster, facts):\n"
        "        key = {'a': 0, 'b': 1, 'c': 2, 'd': 3}[next(iter({'a', 'b', 'c', 'd'}))]\n"
        "        return super().plan(tensor._replace(key=key), cluster, facts)",
        "plans otherwise in another process",
    ),
    "facts that are no whole numbers": (
        "def facts(self, worker, ways, cluster): return (0.5,)", "facts must be a tuple of whole numbers",
    ),
    "too few hints": ("def hints(self, nbytes, cluster, facts): return [1]", "hints must return a whole number"),
    "it takes no cluster": (
        "def check(self, cluster): raise ConfigError('never')", "Mine.check refuses each of 3000 clusters: never",
    ),
    "no round": ("def decide(self, view): return None", "Mine.decide must return a Round"),
    "no round of a number": ("def round(self, number, decided): return None", "Mine.round must return a Round"),
    "blocks that are none": (
        "def plan(self, tensor, cluster, facts):\n"
        "        found = super().plan(tensor, cluster, facts)\n"
        "        return replace(found, blocks=tuple((b.members, 'star') for b in found.blocks))",
        "blocks must be Blocks, such as",
    ),
    "one device for several nodes": (
        "def plan(self, tensor, cluster, facts): return central(cluster)", r"central\(\) has all workers on the node",
    ),
    "a device that is not there": (
        "def plan(self, tensor, cluster, facts):\n"
        "        return ring_of_all(tensor, cluster, [99] * cluster.num_workers, 1000)",
        "on device 99, and there are devices 0 to",
    ),
    "a period that is none": (
        "exchanges = Exchanges.UPDATES\n    period = 2\n"
        "    def round(self, number, decided): return decided if number % 7 == 6 else decided.of_nobody()",
        "and period says that rounds repeat after 2",
    ),
    "gradients left out": ("def round(self, number, decided): return decided.of_nobody()", "leaves gradients out"),
}  # fmt: skip


def checked(path, *options):
    return CliRunner().invoke(check.app, ["--strategy", f"{path}:Mine", *options])


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(sums, "NUM_ORDERS", 10)


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_in_a_sentence(wrong, tmp_path):
    body, said = WRONG[wrong]
    path = tmp_path / f"wrong_{re.sub(r'[^a-z]', '_', wrong)}.py"
    path.write_text(f"{HEAD}    {body}\n")
    done = checked(path)
    assert done.exit_code == 1, done.output
    last = done.stdout.splitlines()[-1]
    assert "wrong: " in last
    assert re.search(said, last)


def test_a_strategy_that_is_right_is_planned_summed_and_simulated(tmp_path):
    path = tmp_path / "right_of_a_test.py"
    path.write_text(f"{HEAD}    every: int = 3\n")
    done = checked(path, "--set", "every=4")
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 6
    assert "9,000 plans are right" in done.stdout
    assert done.stdout.count("(simulated)") == 2
    assert checked(path, "--set", "ever=4").exit_code == 2


def test_what_a_strategy_refuses_is_no_fault(tmp_path):
    path = tmp_path / "one_node_of_a_test.py"
    one = "def check(self, cluster):\n        if len(cluster.nodes) > 1: raise ConfigError('wants one node')"
    path.write_text(f"{HEAD}    {one}\n")
    done = checked(path)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].endswith("refused: wants one node")


def test_a_name_of_another_form_is_refused():
    assert CliRunner().invoke(check.app, ["--strategy", "mine.py"]).exit_code == 2


@pytest.mark.parametrize("example", ["hierarchical:HierarchicalServer", "load_aware:LoadAware", "diloco:DiLoCo"])
def test_examples_are_right(example):
    name, _, kind = example.partition(":")
    path = REPOSITORY / "experiments" / "strategies" / f"{name}.py"
    done = CliRunner().invoke(check.app, ["--strategy", f"{path}:{kind}"])
    assert done.exit_code == 0, done.output
    assert max(len(line) for line in path.read_text().splitlines()) <= 120
    assert len(path.read_text().splitlines()) <= 60


def test_two_processes_that_hash_alike_print_one_digest(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["plans", "coarse", "{}", "20", "0"])
    plans.main()
    plans.main()
    first, second = capsys.readouterr().out.split()
    assert first == second
