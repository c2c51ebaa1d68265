"""`coarse check --strategy` on strategies that are right, and on one for each thing that can be wrong."""

import re
from functools import partial

import pytest
from typer.testing import CliRunner

from coarse.cli import check, check_strategy
from coarse.simulation.checks import plans, sums
from tests.support.launch import REPOSITORY

HEAD = """
import itertools
from dataclasses import dataclass, replace
from coarse.strategy import By, Cast, Coarse, ConfigError, Exchanges, Round, Strategy, TopK, Wire, central
from coarse.strategy import on_each_node, ring_of_all
import random
import numpy as np

class Writes(Cast):
    def encode(self, values, worker, num_workers, state):
        values *= 2
        return super().encode(values, worker, num_workers, state)

class Draws(Cast):
    def decode(self, total, num_values, num_workers):
        return super().decode(total, num_values, num_workers) + random.random()

class Doubled(Cast):
    def decode(self, total, num_values, num_workers):
        return super().decode(total, num_values, num_workers) * np.float32(2)

class Short(Cast):
    def encode(self, values, worker, num_workers, state):
        return np.zeros(len(values) + 1, np.float16), None

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
        r"no member adds \[0",
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
    "a wire that is none": ("def wire(self, tensor): return 'fp16'", "wire must return a Wire whose element is one of"),
    "a wire that writes to gradients": (
        "def wire(self, tensor): return Writes()", "Mine.wire: encode .* raised ValueError: .*read-only",
    ),
    "a wire that draws": ("def wire(self, tensor): return Draws()", "two ranks read other values of one sum"),
    "a wire of another size": (
        "def wire(self, tensor): return Short()", r"Short.encode must return float16\[1\], got float16\[2\]",
    ),
    "a decision that raises": (
        "def decide(self, view): return view.nothing", r"decide .*line \d+. raised AttributeError",
    ),
    "late updates": (
        "exchanges = Exchanges.UPDATES\n    lag = 2", "exchanges updates, and its sums come 2 rounds late",
    ),
    "a lag that is none": ("lag = -1", "lag must be a whole number from 0 to 64, got -1"),
    "gradients left out": ("def round(self, number, decided): return decided.of_nobody()", "leaves gradients out"),
}  # fmt: skip


def checked(path, *options):
    return CliRunner().invoke(check.app, ["--strategy", f"{path}:Mine", *options])


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(check_strategy, "_PROCESS_LAYOUTS", 60)
    monkeypatch.setattr(sums, "NUM_ORDERS", 10)
    monkeypatch.setattr(sums, "NUM_LAYOUTS", 3)


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_in_a_sentence(wrong, tmp_path, monkeypatch):
    body, said = WRONG[wrong]
    if wrong != "it takes no cluster":  # which counts them
        monkeypatch.setattr(check_strategy, "require_plans", partial(plans.require_plans, count=100))
    if wrong != "an order of hashes":  # and two interpreters start
        monkeypatch.setattr(check_strategy, "_by_processes", lambda mode, options: "not compared")
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
    assert len(done.stdout.splitlines()) == 7
    assert "values travel as they are; sums come in their round" in done.stdout
    assert "9,000 plans are right" in done.stdout
    assert done.stdout.count("(simulated)") == 2
    assert checked(path, "--set", "ever=4").exit_code == 2


def test_a_module_that_cannot_be_loaded_and_a_class_that_nobody_names_are_said(tmp_path):
    path = tmp_path / "not_frozen_of_a_test.py"
    head = "from dataclasses import dataclass\nfrom coarse.strategy import Coarse\n"
    path.write_text(f"{head}@dataclass\nclass Mine(Coarse): pass\n")
    done = checked(path)
    assert done.exit_code == 2
    assert "cannot be loaded: TypeError: cannot inherit non-frozen dataclass" in " ".join(done.output.split())
    path = tmp_path / "named_of_a_test.py"
    path.write_text(f"{HEAD}    every: int = 3\n")
    done = checked(path, "--set", "Mnie.every=4")
    assert done.exit_code == 2
    assert "is an option of Mnie, and modes name Mine" in " ".join(done.output.split())


@pytest.fixture
def few_plans(monkeypatch):
    """A tenth of the plans, for what is no matter of plans, and none of other processes."""
    monkeypatch.setattr(check_strategy, "require_plans", partial(plans.require_plans, count=300))
    monkeypatch.setattr(check_strategy, "_by_processes", lambda mode, options: "not compared")


def test_a_wire_that_gives_twice_the_sum_shows_after_many_rounds(few_plans, tmp_path):
    path = tmp_path / "double_of_a_test.py"
    path.write_text(f"{HEAD}    def wire(self, tensor): return Doubled()\n")
    (line,) = [line for line in checked(path).stdout.splitlines() if line.startswith("what travels")]
    assert "and 50 of equal values by 1;" in line


def test_a_wire_is_measured_and_what_it_loses_is_said(few_plans, tmp_path):
    path = tmp_path / "wired_of_a_test.py"
    path.write_text(f"{HEAD}    lag = 3\n    def wire(self, tensor): return Cast() if tensor.nbytes > 40 else None\n")
    done = checked(path)
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("what travels")]
    assert re.search(r"0\.5 of the bytes at 2 workers, a first sum is off by 0\.000\d+ and 50 of", line)
    assert re.search(r"encodes [\d.]+ GB/s and decodes [\d.]+ \(measured\); sums come 3 rounds late", line)


def test_what_a_strategy_refuses_is_no_fault(few_plans, tmp_path):
    path = tmp_path / "one_node_of_a_test.py"
    one = "def check(self, cluster):\n        if len(cluster.nodes) > 1: raise ConfigError('wants one node')"
    path.write_text(f"{HEAD}    {one}\n")
    done = checked(path)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].endswith("refused: wants one node")


def test_a_sharded_mode_is_checked_and_simulated(tmp_path):
    path = REPOSITORY / "experiments" / "strategies" / "frozen_on_host.py"
    done = CliRunner().invoke(check.app, ["--strategy", f"{path}:FrozenOnHost", "--set", "quantised=true"])
    assert done.exit_code == 0, done.output
    assert "trained units: second shards and frozen units: host copy" in done.stdout
    assert done.stdout.count("(simulated)") == 3
    assert len(path.read_text().splitlines()) <= 40
    wrong = tmp_path / "wrong_sharding_of_a_test.py"
    wrong.write_text("from coarse.strategy import *\nclass Mine(Sharding):\n    def gather(self, use): return 3\n")
    done = CliRunner().invoke(check.app, ["--strategy", f"{wrong}:Mine"])
    assert done.exit_code == 2
    assert "a Gather of a Source and Keeps is wanted" in done.output


def test_a_name_of_another_form_is_refused():
    assert CliRunner().invoke(check.app, ["--strategy", "mine.py"]).exit_code == 2


@pytest.mark.parametrize(
    "example",
    [
        "hierarchical:HierarchicalServer",
        "load_aware:LoadAware",
        "diloco:DiLoCo",
        "top_k:TopKGradients",
        "delayed:Delayed",
    ],
)
def test_examples_are_right(few_plans, example):
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
