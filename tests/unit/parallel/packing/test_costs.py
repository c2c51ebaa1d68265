"""What samples cost: coefficients by times, a step that is timed, and the file that keeps them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from coarse.cli.profile import app
from coarse.errors import ConfigError
from coarse.parallel.packing.costs import Cost, fit_cost
from coarse.parallel.packing.measured_cost import load_cost, measure_cost, save_cost

LENGTHS = (64, 256, 1024, 2048)


class TimedStep:
    """A step and the clock that it moves."""

    def __init__(self, cost: Cost, packed_factor: float = 1.0) -> None:
        self.cost = cost
        self.now_s = 0.0
        self._packed_factor = packed_factor

    def __call__(self, lengths):
        self.now_s += self.cost.of_all(lengths) * (self._packed_factor if len(lengths) > 1 else 1.0)


@given(
    quadratic=st.floats(0.0, 10.0), linear=st.floats(0.01, 10.0), scale=st.sampled_from([1.0, 1024.0, 32_000.0]),
    lengths=st.lists(st.integers(1, 100_000), min_size=2, max_size=6, unique=True),
)  # fmt: skip
@example(quadratic=1.0, linear=1.0, scale=1.0, lengths=[99999, 100000])
def test_times_of_a_cost_give_the_cost(quadratic, linear, scale, lengths):
    cost = Cost(quadratic=quadratic, linear=linear)
    found = fit_cost(lengths, [cost.of(length / 1024) for length in lengths], scale=scale)
    for length in lengths:
        assert found.of(length) == pytest.approx(cost.of(length / 1024), rel=1e-6)


def test_coefficients_are_never_negative():
    """Seconds that grow slower than tokens have no quadratic part, those that grow faster than squares no linear."""
    assert fit_cost((1, 2, 4), (1.0, 1.5, 2.0), scale=1.0).quadratic == 0.0
    assert fit_cost((1, 2, 4), (1.0, 8.0, 64.0), scale=1.0).linear == 0.0


@pytest.mark.parametrize(
    ("lengths", "seconds"), [((8,), (1.0,)), ((8, 8), (1.0, 1.0)), ((8, 9), (1.0, 0.0)), ((0, 9), (1.0, 1.0))]
)
def test_too_few_lengths_and_times_of_nothing_are_refused(lengths, seconds):
    with pytest.raises(ConfigError, match="two lengths"):
        fit_cost(lengths, seconds)


def test_a_step_is_timed_alone_and_packed():
    step = TimedStep(Cost(quadratic=2.0, linear=1.0, scale=1024), packed_factor=1.2)
    found = measure_cost(step, LENGTHS, now_s=lambda: step.now_s)
    assert found.cost.quadratic == pytest.approx(2.0)
    assert found.cost.linear == pytest.approx(1.0)
    assert found.packed == (1024, 1024, 2048)
    assert found.packed_share == pytest.approx(0.2)
    assert found.worst_share == pytest.approx(0.0, abs=1e-9)


def test_a_file_keeps_the_cost(tmp_path):
    step = TimedStep(Cost(quadratic=2.0, linear=1.0, scale=1024))
    found = measure_cost(step, LENGTHS, now_s=lambda: step.now_s)
    save_cost(found, tmp_path / "cost.toml", "a step")
    assert load_cost(tmp_path / "cost.toml") == found.cost


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quadratic = 1\nlinear = 2", "1: scale must be a number"),
        ("quadratic = 1\nlinear = 'x'\nscale = 1", "2: linear must be a number"),
        ("quadratic = 1\nlinear = -2\nscale = 1", "at least 0"),
        ("quadratc = 1", "did you mean quadratic"),
    ],
)
def test_a_file_that_states_no_cost_is_refused_by_its_line(tmp_path, text, message):
    (tmp_path / "cost.toml").write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        load_cost(tmp_path / "cost.toml")
    assert "cost.toml:" in str(raised.value)


SCRIPT = """
import time
from dataclasses import dataclass

@dataclass
class Settings:
    factor: float = 1e-6

def make():
    return lambda lengths: time.sleep(sum(lengths) * Settings().factor)

def nothing():
    return None
"""


def test_the_command_times_a_users_step(tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    options = ["--lengths", "500,4000", "--repeats", "1"]
    saved = tmp_path / "cost.toml"
    result = CliRunner().invoke(app, ["--costs", f"{tmp_path}/mine.py:make", *options, "--save", str(saved)])
    assert result.exit_code == 0, result.output
    assert load_cost(saved).of(4000) >= 0.003
    for wrong in (f"{tmp_path}/mine.py:nothing", f"{tmp_path}/mine.py:absent", "no_such_module:x", "mine"):
        assert CliRunner().invoke(app, ["--costs", wrong, *options]).exit_code == 2
    assert CliRunner().invoke(app, ["--costs", f"{tmp_path}/mine.py:make", "--lengths", "a"]).exit_code == 2
