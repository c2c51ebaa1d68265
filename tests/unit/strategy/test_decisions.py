"""Files that fix what a run has measured and decided."""

import json

import pytest

from coarse.errors import ConfigError
from coarse.protocol.plan import Cluster
from coarse.strategy.decisions import Decisions, text_of
from coarse.strategy.rounds import By, Round

CLUSTER = Cluster(worker_nodes=(0, 0), device_nodes=(0,), local_devices=(0, 0))
FACTS = ((1, 2, 3), (4, 5, 6))
ROUND = Round(by=(By.DEVICES, By.WORKERS), hold_back=False)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "decision.json"
    first = Decisions(found, CLUSTER)
    assert first.round_of("optimizer0/", 2) is None
    first.note("optimizer0/", ROUND)
    first.write(FACTS)
    return found


def test_what_was_written_is_fixed_for_the_next_and_never_written_again(path):
    text = text_of(str(path))
    found = Decisions(path, CLUSTER, text)
    assert (found.facts, found.round_of("optimizer0/", 2)) == (FACTS, ROUND)
    found.note("optimizer0/", Round(by=(By.WORKERS,) * 2))
    found.write(((9, 9, 9), (9, 9, 9)))
    assert text_of(str(path)) == text
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_round_of_another_model_is_refused(path):
    found = Decisions(path, CLUSTER, text_of(str(path)))
    for prefix, count, came in (("optimizer0/", 3, "one of 2"), ("other/", 2, "none")):
        with pytest.raises(ConfigError, match=rf"of {count} buckets was wanted for '{prefix}', and it has {came}"):
            found.round_of(prefix, count)


def test_a_file_of_another_cluster_is_refused(path):
    other = Cluster(worker_nodes=(0, 0, 0), device_nodes=(0,), local_devices=(0, 0, 0))
    with pytest.raises(ConfigError, match=r"of a run on .*, and this one is on .*; remove it"):
        Decisions(path, other, text_of(str(path)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 7),
        ("facts", [[0.5], [1]]),
        ("facts", None),
        ("rounds", {"x": {"by": ["nobody's"], "hold_back": True}}),
        ("rounds", {"x": {}}),
        ("rounds", []),
    ],
)
def test_a_file_that_is_torn_or_not_of_a_run_is_refused(path, key, value):
    document = json.loads(path.read_text())
    document[key] = value
    with pytest.raises(ConfigError, match=r"no decisions of a run .*; remove it to decide anew"):
        Decisions(path, CLUSTER, json.dumps(document))
    with pytest.raises(ConfigError, match="no decisions of a run"):
        Decisions(path, CLUSTER, path.read_text()[:-20])


def test_a_file_whose_folder_is_gone_at_the_end_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"gone/decision.json' cannot be written .*; check its folder"):
        Decisions(tmp_path / "gone" / "decision.json", CLUSTER).write(FACTS)


def test_what_cannot_be_read_or_written_is_said_at_the_start(tmp_path):
    assert text_of(None) == text_of(str(tmp_path / "absent.json")) == ""
    with pytest.raises(ConfigError, match="its folder is not there"):
        text_of(str(tmp_path / "absent" / "decision.json"))
    with pytest.raises(ConfigError, match="cannot be read"):
        text_of(str(tmp_path))
