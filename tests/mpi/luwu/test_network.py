"""Models whose workers, switches and optimizer nodes are on hosts of their own, which this one is divided into."""

import json
import os
from pathlib import Path

import pytest

from tests.mpi.luwu.test_training import PROGRAM as TRAINING
from tests.support.claims import claims_of, read_reports, require_held, takes_all
from tests.support.launch import mpirun
from tests.support.layouts import table_of

PROGRAM = Path(__file__).parent / "network_claims.py"
BILLION = Path(__file__).parent / "billion_claims.py"
RANKS = (
    ("worker", "a"), ("worker", "a"), ("memory_device", "a"), ("worker", "b"), ("memory_device", "b"),
    ("memory_device", "s"), ("memory_device", "o"),
)  # fmt: skip
NUM_WORKERS = 3
LOSSY = {"optimizers": [3], "switches": 2, "network": "udp", "loss": 0.02}
BY_PACKETS = (
    "several_passes_are_summed_in_their_order",
    "sums_that_wait_on_the_disk_are_the_same",
    "clipping_by_the_norm_is_exact",
    "groups_by_name_have_settings_of_their_own",
    "half_types_compute_over_float32_states",
    "a_tied_parameter_gives_its_gradients_in_parts",
    "frozen_parameters_stay_and_send_nothing",
    "a_parameter_that_nobody_used_is_left_alone",
    "a_model_on_the_meta_device_is_made_unit_by_unit",
    "values_are_seen_and_edited_when_they_are_summoned",
    "state_dicts_are_torchs_and_go_back_and_forth",
    "discarded_gradients_count_for_nothing",
    "changed_settings_make_speculative_updates_anew",
)
"""Claims of training that packets, what is lost of them, and sums on the way could break."""
IN_MAKE_TEST = (
    "several_passes_are_summed_in_their_order",
    "clipping_by_the_norm_is_exact",
    "half_types_compute_over_float32_states",
    "a_parameter_that_nobody_used_is_left_alone",
    "discarded_gradients_count_for_nothing",
)
CHECKED = BY_PACKETS if takes_all() else IN_MAKE_TEST


def started(folder, *arguments, timeout_s=300, **options):
    """A program on these hosts."""
    (folder / "table.toml").write_text(table_of(RANKS))
    (folder / "config.toml").write_text('stall_timeout_s = 20\npartition = "table.toml"\n')
    environment = {"COARSE_CONFIG": str(folder / "config.toml")}
    return mpirun(len(RANKS), arguments[0], folder, *arguments[1:], env=environment, timeout_s=timeout_s, **options)


def run(folder, *arguments, **options):
    """What its claims report."""
    done = started(folder, *arguments, joins_first=True, preloaded="torch", **options)
    assert done.returncode == 0, done.stderr
    return read_reports(folder, NUM_WORKERS)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """By claim what each worker found."""
    return run(tmp_path_factory.mktemp("network"), PROGRAM)


@pytest.fixture(scope="module")
def lossy_reports(tmp_path_factory):
    """The same of a training whose datagrams are lost now and then."""
    return run(tmp_path_factory.mktemp("lossy"), TRAINING, json.dumps(LOSSY), ",".join(CHECKED))


@pytest.mark.parametrize("name", claims_of(PROGRAM))
def test_claim(reports, name):
    require_held(reports, [name])


@pytest.mark.parametrize("name", CHECKED)
def test_training(lossy_reports, name):
    require_held(lossy_reports, [name])


@pytest.mark.skipif("COARSE_TEST_LOSSES" not in os.environ, reason="minutes; make test-losses")
def test_a_billion_elements_lose_no_bit(tmp_path):
    require_held(run(tmp_path, BILLION, timeout_s=1800), claims_of(BILLION))
