"""Files of compute times: what is written is read, and all else is refused by name."""

import json

import pytest

from coarse.emulation.compute_file import ComputeTimes, read_compute_times, write_compute_times
from coarse.errors import ConfigError

WORKERS = ({"a -> b": [1.0, 5.0], "b -> a": [2.0]}, {"a -> b": [3.0], "c -> b": [7.0]})


@pytest.fixture
def path(tmp_path):
    """A file of two workers, in a folder of its own."""
    path = tmp_path / "new" / "compute.json"
    write_compute_times(path, "train.py --steps 3", "A40", 50.0, WORKERS)
    return path


def test_medians_over_workers_and_passes_are_read_as_they_were_written(path):
    stretches_s, points_s = {"a -> b": 3.0, "c -> b": 7.0, "b -> a": 2.0}, {"a": 2.0, "b": 4.0}
    assert read_compute_times(path) == ComputeTimes("train.py --steps 3", "A40", 50.0, stretches_s, points_s)
    assert read_compute_times(path, "A40") == read_compute_times(path)
    assert [each.name for each in path.parent.iterdir()] == ["compute.json"]


def test_times_of_another_program_are_refused_and_other_arguments_are_not(path):
    assert read_compute_times(path, script="train.py --steps 9").script == "train.py --steps 3"
    with pytest.raises(ConfigError, match=r"compute\.json has times of train\.py, and this is other\.py"):
        read_compute_times(path, script="other.py --steps 3")


def test_times_of_another_accelerator_are_refused(path):
    with pytest.raises(ConfigError, match=r"compute\.json has times of A40, and the machine's accelerator is V100"):
        read_compute_times(path, "V100")


@pytest.mark.parametrize(("change", "said"), [
    ({"kind": "emulated"}, 'its "kind" is not "compute times"'),
    ({"accelerator": 3}, 'the name of an "accelerator"'),
    ({"script": ""}, 'the name of a "script"'),
    ({"scale": 0}, 'a "scale" above 0'),
    ({"scale": True}, 'a "scale" above 0'),
    ({"stretches_s": {}}, 'no "stretches_s"'),
    ({"points_s": None}, 'no "points_s"'),
    ({"stretches_s": [1.0]}, 'no "stretches_s"'),
    ({"stretches_s": {"a -> b": -1.0}}, "'a -> b' takes -1.0"),
    ({"stretches_s": {"a -> b": float("nan")}}, "'a -> b' takes nan"),
])  # fmt: skip
def test_what_is_no_such_file_is_refused_and_says_what_writes_one(change, said, path):
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match="--save-compute writes them") as raised:
        read_compute_times(path)
    assert said in str(raised.value)


@pytest.mark.parametrize("text", ["", "[1", "[1]"])
def test_a_torn_file_is_refused(text, path):
    path.write_text(text)
    with pytest.raises(ConfigError, match="holds no compute times"):
        read_compute_times(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no compute times in .*none: No such file"):
        read_compute_times(tmp_path / "none")


def test_a_stretch_that_no_run_had_takes_what_leads_to_its_end():
    times = ComputeTimes("train.py", "A40", 50.0, {"a -> b": 3.0}, {"b": 4.0})
    assert [times.between_s("a", "b"), times.between_s("d", "b"), times.between_s("b", "a")] == [3.0, 4.0, None]
