"""Settings by which two runs differ in bits are refused, with what to set."""

import pytest

from coarse.errors import ConfigError
from coarse.faults.repeatable import require_repeatable
from coarse.protocol.config import Config, EmulateSettings, FixedRouting
from coarse.strategy import Rows, Strategy
from coarse.strategy.named import strategy_of
from coarse.strategy.strategy import Exchanges

FIXED = FixedRouting(threshold_bytes=1, partition_bytes=1)


def check(num_workers: int = 3, nodes: int = 1, **settings) -> None:
    config = Config(**settings)
    require_repeatable(config, strategy_of(config), num_workers, nodes)


@pytest.mark.parametrize(
    ("num_workers", "nodes", "settings"),
    [
        (2, 2, {}),
        (2, 1, {"mode": "allreduce"}),
        (3, 1, {"policy": "devices"}),
        (3, 1, {"mode": "dense"}),
        (3, 1, {"mode": "allreduce", "worker_collective": "ring"}),
        (3, 1, {"decision": "facts.json", "worker_collective": "ring"}),
        (4, 2, {"policy": "devices", "routing": FIXED}),
        (4, 2, {"policy": "devices", "decision": "facts.json"}),
    ],
)
def test_what_repeats_itself_is_taken(num_workers, nodes, settings):
    check(num_workers, nodes, **settings)


@pytest.mark.parametrize(
    ("num_workers", "nodes", "settings", "key", "words"),
    [
        (3, 1, {}, "policy", 'set policy = "devices"'),
        (3, 1, {"policy": "paper"}, "policy", 'set policy = "devices"'),
        (3, 1, {"mode": "allreduce"}, "worker_collective", 'set worker_collective = "ring"'),
        (3, 1, {"decision": "facts.json"}, "worker_collective", 'set worker_collective = "ring"'),
        (4, 2, {"policy": "devices"}, "routing", r'set \[routing\] policy = "fixed"'),
        (3, 1, {"policy": "devices", "collective": "ring"}, "routing", r'set \[routing\] policy = "fixed"'),
        (2, 1, {"emulate": EmulateSettings(machine="cxl-cz120")}, "emulate", "leave out --machine"),
    ],
)
def test_what_differs_from_run_to_run_is_refused(num_workers, nodes, settings, key, words):
    with pytest.raises(ConfigError, match=words) as refused:
        check(num_workers, nodes, **settings)
    assert refused.value.key == key


def test_ddp_is_summed_by_the_workers():
    config = Config(policy="devices")
    with pytest.raises(ConfigError, match='set worker_collective = "ring"'):
        require_repeatable(config, strategy_of(config), 3, 1, is_ddp=True)
    require_repeatable(config, strategy_of(config), 2, 1, is_ddp=True)


class Late(Strategy):
    """Sums come a round late."""

    lag = 1


class Wired(Strategy):
    """Something else than values travels."""

    def wire(self, tensor):
        return Rows


class Rare(Strategy):
    """Sums in some rounds alone."""

    def round(self, number, decided):
        return decided


@pytest.mark.parametrize(
    ("strategy", "words"), [(Late, "come 1 rounds late"), (Wired, "wires have left"), (Rare, "round.. counts rounds")]
)
def test_what_a_strategy_holds_and_nobody_keeps_is_refused(strategy, words):
    with pytest.raises(ConfigError, match=words):
        require_repeatable(Config(policy="devices"), strategy(), 2, 1)


def test_a_strategy_of_updates_counts_its_rounds_itself():
    class Local(Rare):
        exchanges = Exchanges.UPDATES

    require_repeatable(Config(policy="devices"), Local(), 2, 1)
