"""What ranks' statements of the configuration come to."""

import pytest

from coarse.errors import ConfigError
from coarse.protocol.config import Config, load_config
from coarse.protocol.statement import Statement, settle


def states(given=None, **environ: str) -> Statement:
    return Statement.of(load_config(given, environ), given, environ)


def settled(*statements: Statement) -> list[Config]:
    """Every rank's, after a way over the wire."""
    came = [Statement.from_json(statement.to_json()) for statement in statements]
    return [settle(came, rank) for rank in range(len(came))]


def test_ranks_that_state_nothing_take_what_others_were_given():
    given = Config(mode="allreduce", stall_timeout_s=5)
    assert settled(states(), states(given), states()) == [given] * 3
    assert settled(states(), states()) == [Config()] * 2


def test_a_configuration_of_any_length_arrives_whole(tmp_path):
    given = Config(partition=",".join(["worker"] * 1000 + ["memory_device"]))
    assert len(states(given).to_json()) > 4096
    assert settled(states(given), states()) == [given] * 2


def test_settings_that_differ_are_named_with_their_ranks():
    with pytest.raises(ConfigError, match="mode is 'dense' on rank 2 but 'coarse' on rank 0"):
        settled(states({}), states(), states({"mode": "dense"}))


@pytest.mark.parametrize(("name", "value"), [("COARSE_MODE", "allreduce"), ("COARSE_POLICY", "paper")])
def test_a_variable_that_is_set_on_some_hosts_alone_is_refused(name, value):
    wanted = rf"{name} is '{value}' on ranks \[0\] and not set on ranks \[1, 2\]; .*mpirun -x {name}"
    with pytest.raises(ConfigError, match=wanted):
        settled(states(**{name: value}), states(), states())
    assert settled(*[states(**{name: value})] * 3) == [load_config(None, {name: value})] * 3


def test_a_variable_that_contradicts_a_configuration_given_elsewhere_is_refused():
    wanted = r"COARSE_MODE is 'dense' on ranks \[0\] and in the configuration 'coarse' on ranks \[1\]"
    with pytest.raises(ConfigError, match=wanted):
        settled(states(COARSE_MODE="dense"), states({"stall_timeout_s": 5}))
    same = Config(mode="dense", stall_timeout_s=5)
    assert settled(states(COARSE_MODE="dense"), states(same), states()) == [same] * 3


def test_a_rank_without_a_table_of_its_own_takes_the_others():
    assert [config.partition for config in settled(states({"partition": "1:1"}), states())] == ["1:1", "1:1"]
    assert [config.partition for config in settled(states({}), states(COARSE_PARTITION="1:1"))] == [None, "1:1"]
