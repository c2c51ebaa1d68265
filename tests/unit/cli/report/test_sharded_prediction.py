"""Sharded modes beside data-parallel ones: on the same compute, and as `coarse shard` has them."""

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from coarse.cli import predict
from coarse.cli.report.prediction import scenarios_of
from coarse.cli.report.sharded_prediction import any_modes_of, sharded_outcome, sharded_scenario
from coarse.errors import CapacityError, ConfigError
from coarse.hardware.compute import profile_at_peak_share
from coarse.hardware.models import Precision
from coarse.protocol.config import MODES
from coarse.simulation.question import Question
from coarse.strategy.sharding import SHARDINGS, SIMULATED, Fcdp, Fsdp, OnDemand, Zero2
from tests.support.launch import REPOSITORY

QUESTION = Question(machine="fcdp-a40-10gbe", model="bert-large", gpu="v100", batch=4, num_workers=4, num_nodes=2)
ALL_SHARDED = [SHARDINGS[name]() for name in SIMULATED]


def called(*arguments):
    return CliRunner().invoke(predict.app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """The record of a prediction of all modes, and what it printed."""
    out = tmp_path_factory.mktemp("all")
    done = called("--machine", "fcdp-a40-10gbe", "--model", "resnet50", "--gpu", "v100", "--batch", 8, "--workers", 4,
                  "--nodes", 2, "--policy", "paper", "--samples", 2, "--modes", "all", "--out", out)  # fmt: skip
    assert done.exit_code == 0, done.output
    return json.loads((out / "run.json").read_text()), done.output


def test_one_table_has_every_mode_that_is_possible_and_says_why_others_are_not(everything):
    run, output = everything
    assert [row["name"] for row in run["rows"]] == [*list(MODES)[1:], *SIMULATED]
    assert any(note.startswith("Left out dense: ") for note in run["notes"])
    assert "gather a block of layers at a time" in output


def test_all_modes_compute_alike_and_have_ranges(everything):
    run, _ = everything
    assert len({round(row["compute_s"], 9) for row in run["rows"]}) == 1
    assert all(len(row["samples_s"]) == 4 for row in run["rows"])
    assert all(min(row["samples_s"]) < row["iteration_s"] < max(row["samples_s"]) for row in run["rows"])


@pytest.mark.parametrize("mode", ALL_SHARDED, ids=SIMULATED)
def test_a_share_of_the_peak_gives_what_units_of_as_many_operations_give(mode):
    scenarios = scenarios_of(QUESTION)
    profile = profile_at_peak_share(scenarios.model, scenarios.machine.accelerator, 4, Precision.FP16, 0.2)
    by_profile = sharded_scenario(replace(scenarios, profile=profile), mode)
    by_share = replace(by_profile, profile=None, peak_share=0.2)
    assert by_profile.run().iteration_s == pytest.approx(by_share.run().iteration_s)
    assert [unit.trainable_nbytes for unit in by_profile.units] == [unit.trainable_nbytes for unit in by_share.units]


@pytest.mark.parametrize("mode", ALL_SHARDED, ids=SIMULATED)
def test_gpus_that_compute_beside_collectives_take_longer_by_at_most_the_stated_factor(mode):
    alone, beside = (
        sharded_scenario(scenarios_of(replace(QUESTION, ring_slow_down=factor)), mode).run() for factor in (1.0, 1.4)
    )
    assert alone.compute_s <= beside.compute_s <= 1.4 * alone.compute_s
    assert alone.iteration_s <= beside.iteration_s <= 1.4 * alone.iteration_s
    assert mode == Zero2() or alone.compute_s < beside.compute_s  # whose compute is never beside one
    spans = [end_s - begin_s for _, begin_s, end_s in beside.computed]
    assert sum(spans) == pytest.approx(beside.compute_s)


def test_a_units_seconds_are_those_of_its_layers():
    scenarios = scenarios_of(QUESTION)
    units = sharded_scenario(scenarios, Fsdp()).units
    assert sum(unit.forward_s for unit in units) == pytest.approx(scenarios.profile.total_forward_s)
    assert sum(unit.backward_s for unit in units) == pytest.approx(scenarios.profile.total_backward_s)
    assert sum(unit.nbytes for unit in units) == 4 * scenarios.model.num_parameters
    assert 20 < len(units) < len(scenarios.model.layers)


def test_without_a_list_the_data_parallel_modes_are_asked_for_and_names_may_be_mixed():
    assert list(any_modes_of(None)) == list(MODES)
    assert list(any_modes_of("fcdp, allreduce,fcdp")) == [Fcdp(), "allreduce"]
    assert list(any_modes_of("all")) == [*MODES, *ALL_SHARDED]
    with pytest.raises(ConfigError, match=r"dense, allreduce, coarse, zero2, .* all, or a strategy .* got 'fcpd'"):
        list(any_modes_of("fcpd"))


def test_odc_sends_what_its_table_says_and_is_never_faster_than_its_link():
    """Docs/odc.md: a node sends 2 M L (N-1)/N W of shards, and M L (N-1)/N W of gradients; here M is 1, L 2, N 2."""
    scenarios = scenarios_of(QUESTION)
    (mode,) = any_modes_of("odc")
    found = sharded_outcome(scenarios, mode)
    ((_, sent_nbytes),) = found.result.link_bytes
    whole = 4 * scenarios.model.num_parameters
    assert sent_nbytes == pytest.approx(3 * 2 / 2 * whole, rel=0.01)
    assert found.memory_bytes == sharded_outcome(scenarios, Fsdp()).memory_bytes
    compute_s = sharded_outcome(scenarios, Fsdp()).result.compute_s
    assert found.result.compute_s == pytest.approx(compute_s)
    assert found.result.iteration_s >= sent_nbytes / min(link.bytes_per_s for link in scenarios.machine.links)


def test_a_sharded_mode_of_ones_own_stands_in_the_table(tmp_path):
    own = f"{REPOSITORY / 'experiments' / 'strategies' / 'frozen_on_host.py'}:FrozenOnHost"
    (mode,) = any_modes_of(own, ["FrozenOnHost.quantised=true"])
    assert mode.quantised
    done = called("--machine", "fcdp-a40-10gbe", "--model", "resnet50", "--gpu", "v100", "--batch", 8, "--workers", 4,
                  "--nodes", 2, "--samples", 0, "--modes", f"zeropp,{own},allreduce", "--set", "quantised=true",
                  "--out", tmp_path)  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = {row["name"]: row["iteration_s"] for row in json.loads((tmp_path / "run.json").read_text())["rows"]}
    assert list(rows) == ["zeropp", "FrozenOnHost", "allreduce"]
    assert rows["FrozenOnHost"] < rows["zeropp"]  # nothing is frozen, and it gathers int8


def test_what_a_sharded_mode_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="no link is called"):
        sharded_outcome(scenarios_of(replace(QUESTION, degradations=("nowhere=0.5@0",))), Fsdp())
    with pytest.raises(CapacityError, match="needs"):
        sharded_outcome(scenarios_of(replace(QUESTION, batch=4096)), Fsdp())


@pytest.mark.parametrize("mode", [Fsdp(), OnDemand()])
def test_a_straggler_and_jitter_are_told_of(mode):
    quiet = sharded_outcome(scenarios_of(QUESTION), mode)
    found = sharded_outcome(scenarios_of(replace(QUESTION, stragglers=("1=3",), jitter=0.2, num_iterations=4)), mode)
    assert quiet.notes == ()
    assert re.match(r"Milliseconds of 4 iterations of (fsdp|odc): .* with jitter 0.2 of seed 0", found.notes[0])
    assert found.result.compute_s > quiet.result.compute_s
    assert found.result.idle_s > quiet.result.idle_s
    assert found.result.iteration_s > quiet.result.iteration_s


def test_a_mode_asked_for_by_name_that_does_not_fit_ends_with_2(tmp_path):
    done = called("--machine", "fcdp-a40-10gbe", "--model", "bert-large", "--gpu", "v100", "--batch", 4096, "--modes",
                  "fsdp", "--out", tmp_path)  # fmt: skip
    assert done.exit_code == 2
    assert "mode fsdp: bert-large with fsdp at batch 4096 per GPU needs" in done.output
