"""docs/tensorflow.md says of every public name of tf.distribute's what becomes of it, and where that is tested."""

import re
from pathlib import Path

import pytest
import tensorflow as tf

from tf_strategy.extended import UnsupportedMethods
from tf_strategy.private_names import MirroredExtended

REPOSITORY = Path(__file__).parents[3]
PROGRAMS = REPOSITORY / "tests" / "mpi" / "tf"
REFUSED = "what_would_act_in_one_process_alone_is_refused_by_name"
KINDS = {
    "Strategy": tf.distribute.Strategy,
    "StrategyExtended": MirroredExtended,
    "ReplicaContext": tf.distribute.ReplicaContext,
}
CLAIMS = {
    "within_scope_it_is_the_strategy_and_replicas_are_counted_over_workers": (
        "Strategy.scope",
        "Strategy.num_replicas_in_sync",
    ),
    "run_passes_arguments_and_structures_and_gives_its_own_result": (
        "Strategy.run",
        "Strategy.experimental_run",
        "ReplicaContext.replica_id_in_sync_group",
    ),
    "strategy_reduce_combines_values_on_the_host_and_int32": (
        "Strategy.reduce",
    ),
    "gathers_have_every_worker_s_rows": (
        "Strategy.gather",
        "ReplicaContext.all_gather",
    ),
    "an_epoch_gives_each_worker_its_part_of_each_global_batch": (
        "Strategy.experimental_distribute_dataset",
    ),
    "a_dataset_from_a_function_keeps_its_batches": (
        "Strategy.distribute_datasets_from_function",
        "Strategy.experimental_distribute_datasets_from_function",
    ),
    "a_function_of_values_is_told_its_replica": (
        "Strategy.experimental_distribute_values_from_function",
    ),
    "local_results_are_those_of_this_worker": (
        "Strategy.experimental_local_results",
        "Strategy.unwrap",
        "Strategy.group",
    ),
    "variables_know_their_strategy_container_and_devices": (
        "Strategy.extended",
        "Strategy.colocate_vars_with",
        "StrategyExtended.variable_created_in_scope",
        "StrategyExtended.value_container",
        "StrategyExtended.worker_devices",
        "StrategyExtended.worker_devices_by_replica",
        "StrategyExtended.parameter_devices",
        "StrategyExtended.experimental_require_static_shapes",
    ),
    "there_is_no_cluster_resolver_and_a_session_needs_no_setting": (
        "Strategy.cluster_resolver",
        "Strategy.update_config_proto",
    ),
    "what_would_act_in_one_process_alone_is_refused_by_name": (
        "Strategy.configure",
        "Strategy.make_dataset_iterator",
        "Strategy.make_input_fn_iterator",
        "StrategyExtended.experimental_make_numpy_dataset",
        "StrategyExtended.experimental_run_steps_on_iterator",
    ),
    "all_reduce_combines_all_workers": (
        "ReplicaContext.all_reduce",
    ),
    "a_merge_call_runs_once_in_every_worker_across_its_replica": (
        "ReplicaContext.merge_call",
    ),
    "a_replica_context_knows_its_place_among_all_workers": (
        "ReplicaContext.num_replicas_in_sync",
        "ReplicaContext.strategy",
        "ReplicaContext.devices",
    ),
    "extended_reductions_combine_all_workers": (
        "StrategyExtended.reduce_to",
        "StrategyExtended.batch_reduce_to",
    ),
    "an_update_changes_a_variable_by_reduced_values_alike_everywhere": (
        "StrategyExtended.update",
    ),
    "variables_made_beside_another_are_rank_0_s_too": (
        "StrategyExtended.colocate_vars_with",
    ),
    "broadcast_to_gives_rank_0_s_value": (
        "StrategyExtended.broadcast_to",
    ),
    "variables_synchronised_on_reading_are_combined": (
        "StrategyExtended.read_var",
    ),
    "an_update_beside_no_variable_runs_in_every_worker": (
        "StrategyExtended.call_for_each_replica",
        "StrategyExtended.update_non_slot",
        "StrategyExtended.non_slot_devices",
    ),
    "who_writes_files_is_one_worker": (
        "StrategyExtended.should_checkpoint",
        "StrategyExtended.should_save_summary",
        "StrategyExtended.experimental_between_graph",
        "StrategyExtended.experimental_should_init",
    ),
}
"""By claim, of tests/mpi/tf/*_claims.py, the public names that it is about."""
_ROW = re.compile(r"^\| `(\w+\.\w+)` \| (\w+) \| [^|]+ \|$", re.MULTILINE)
_CLAIM = re.compile(r"^def ([a-z]\w+)\(\)(?: -> None)?:", re.MULTILINE)


def verdicts() -> dict[str, str]:
    """By public name what the page says becomes of it."""
    return dict(_ROW.findall((REPOSITORY / "docs" / "tensorflow.md").read_text()))


def test_every_public_name_stands_in_the_page_and_has_a_claim():
    public = {f"{title}.{name}" for title, kind in KINDS.items() for name in dir(kind) if not name.startswith("_")}
    assert public <= set(verdicts())
    assert set(verdicts()) == {name for names in CLAIMS.values() for name in names}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_is_one_that_two_workers_check(claim):
    checked = [name for path in PROGRAMS.glob("*_claims.py") for name in _CLAIM.findall(path.read_text())]
    assert claim in checked


def test_what_the_page_calls_refused_is_what_is_refused():
    refused = {name for name, verdict in verdicts().items() if verdict == "refused"}
    assert refused == set(CLAIMS[REFUSED])
    assert set(verdicts().values()) == {"works", "refused"}
    methods = {name for name in vars(UnsupportedMethods) if not name.startswith("__")}
    assert {f"_{name.partition('.')[2]}" for name in refused} == methods
