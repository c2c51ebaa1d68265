"""Scripts that train state a mode beside a configuration file."""

import os

import pytest

import coarse
from experiments.start import join_job


@pytest.fixture
def given(monkeypatch):
    """The configurations that `init` was given."""
    found: list[object] = []
    monkeypatch.setattr(coarse, "init", lambda config=None: found.append(config))
    for name in ("COARSE_CONFIG", "COARSE_MODE", "COARSE_POLICY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return found


def test_without_a_file_the_options_are_the_configuration(given):
    join_job(mode="dense", policy=None)
    assert given == [{"mode": "dense"}]


def test_a_file_is_read_and_the_options_come_over_it(given, monkeypatch):
    monkeypatch.setenv("COARSE_CONFIG", "there.toml")
    join_job(mode="dense", policy=None)
    assert given == [None]
    assert os.environ["COARSE_MODE"] == "dense"
    assert "COARSE_POLICY" not in os.environ
