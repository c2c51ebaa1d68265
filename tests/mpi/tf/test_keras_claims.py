"""What Keras' own tests claim of strategies, on two workers; the list is held to the tests that are installed."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.mpi.tf.keras_claims import NAMES
from tests.support.claims import read_reports
from tests.support.launch import mpirun

HERE = Path(__file__).parent
NUM_WORKERS = 2
ALWAYS = ("backend/tensorflow/distribute_test.py", "backend/tensorflow/optimizer_distribute_test.py")
"""Every test of these files is about strategies, of other files those that name tf.distribute."""

TABLE = {
    "backend/tensorflow/distribute_test.py": {
        "test_variable_creation": "a_layers_variables_are_mirrored_and_begin_alike",
        "test_strategy_run": "a_step_runs_on_each_workers_own_input",
        "test_epoch_iterator": "an_epoch_gives_each_worker_its_part_of_each_global_batch",
        "test_variable_aggregation": "a_variables_aggregation_is_the_one_that_was_asked_for",
        "test_variable_synchronization": "a_variables_synchronization_is_on_write_unless_on_read_is_asked_for",
        "test_seed_generator": "a_seed_generators_state_is_the_same_in_every_replica",
        "test_correctness_with_fit_and_regularizer": "a_fit_with_a_regularizer_equals_that_of_one_process",
    },
    "backend/tensorflow/optimizer_distribute_test.py": {
        "test_config": "an_optimizer_made_in_scope_is_made_again_from_its_config",
        "test_single_step": "one_step_subtracts_the_rate_times_the_sum_of_all_workers_gradients",
        "test_weight_decay": "weight_decay_is_applied_once_however_many_workers_there_are",
        "test_correctness_with_golden": "several_nesterov_steps_follow_the_rule_on_the_sum_of_gradients",
        "test_clip_norm": "clipping_by_norm_clips_the_sum_of_all_workers_gradients",
        "test_clip_value": "clipping_by_value_clips_the_sum_of_all_workers_gradients",
        "test_stateless_not_supported": "a_step_without_state_is_refused",
        "test_ema": "averages_of_weights_follow_the_steps_and_overwrite_them_in_time",
        "test_gradient_accumulation": "accumulated_gradients_are_sums_over_all_workers",
    },
    "backend/common/variables_test.py": {
        "test_variable_numpy_scalar": "a_scalar_variable_becomes_a_numpy_array",
    },
    "callbacks/swap_ema_weights_test.py": {
        "test_swap_ema_weights_with_tf_distribute": "averaged_weights_swapped_in_are_those_saved",
    },
    "ops/nn_test.py": {
        "test_moments_sync_with_distribution_strategy": "synchronised_moments_are_those_of_all_workers_values",
    },
    "trainers/data_adapters/tf_dataset_adapter_test.py": {
        "test_distributed_datasets_from_function_adapter_properties": "a_dataset_from_a_function_keeps_its_batches",
        "test_distributed_datasets_from_function_model_integration": "a_model_fits_on_a_dataset_from_a_function",
    },
}
"""By file and name of each of Keras' tests about strategies, where its claim is checked."""


def installed() -> dict[str, set[str]]:
    """By file of the installed Keras, its tests about strategies."""
    spec = find_spec("keras")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent / "src"
    found = {str(path.relative_to(source)): _about_strategies(path, source) for path in source.rglob("*_test.py")}
    return {path: names for path, names in found.items() if names}


def _about_strategies(path: Path, source: Path) -> set[str]:
    text = path.read_text()
    if "distribute" not in text:
        return set()
    always = str(path.relative_to(source)) in ALWAYS
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    tests = [function for function in functions if function.name.startswith("test")]
    return {test.name for test in tests if always or any(map(_is_tf_distribute, ast.walk(test)))}


def _is_tf_distribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) in ("tf.distribute", "tensorflow.distribute")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """By claim of all modules what each worker found."""
    folder = tmp_path_factory.mktemp("job")
    completed = mpirun(2 * NUM_WORKERS, HERE / "keras_claims.py", folder, *NAMES, timeout_s=300, preloaded="tensorflow")
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, NUM_WORKERS)


def test_every_claim_holds_on_every_rank(reports):
    assert {name: found for name, found in reports.items() if any(found)} == {}


def test_every_test_of_keras_about_strategies_stands_in_the_table():
    found = installed()
    if not found:
        pytest.skip("the wheel of this Keras is without its tests")
    assert set(ALWAYS) <= set(found)
    missing = {path: names - set(TABLE.get(path, {})) for path, names in found.items()}
    assert {path: names for path, names in missing.items() if names} == {}


def test_every_row_of_the_table_names_a_claim_that_was_checked(reports):
    assert {claim for rows in TABLE.values() for claim in rows.values()} <= set(reports)
