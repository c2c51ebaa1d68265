"""What Horovod's tests of its torch module claim, and which of coarse's own claims checks it; run and counted.

    python -m tests.conformance.horovod [--results FILE]

The names are those of test/parallel/test_torch.py at 2626dc8. The claims were written from Horovod's documentation;
tests/mpi/torch/torch_claims.py checks them on two workers and one device, and on three and one.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

from tests.mpi.torch.torch_claims import NAMES
from tests.support.claims import TAKES_ALL, claims_of, read_reports
from tests.support.launch import mpirun

HERE = Path(__file__).parent
RESULTS = HERE / "horovod.json"
PROGRAM = HERE.parent / "mpi" / "torch" / "torch_claims.py"
LAYOUTS = ((2, 1), (3, 1))
"""Workers and devices."""
CONFIG = "stall_timeout_s = 20\nbucket_bytes = 2000\n"

GPU = "does not apply: it wants GPUs"
NOT_THERE = "does not apply: coarse has no "
NO_LIMIT = "does not apply: it wants a limitation reported that coarse does not have: "
ORDERED = ("a_name_of_an_ordered_call_is_in_use_until_it_or_a_later_one_was_waited_for",)

TABLE: dict[str, str | tuple[str, ...]] = {
    "gpu_required": GPU,
    "horovod_reinit": "differs: a job ends once; init() after shutdown() is a NotInitializedError",
    "horovod_is_initialized": ("a_second_init_does_nothing_and_questions_have_answers",),
    "horovod_rank": ("process_sets_call_among_themselves",),
    "horovod_size": ("process_sets_call_among_themselves",),
    "horovod_allreduce": ("an_allreduce_sums_every_type_and_shape_by_name_or_without",),
    "horovod_allreduce_average": ("an_average_of_integers_is_rounded_toward_zero",),
    "horovod_allreduce_min": ("other_operations_are_those_of_their_names",),
    "horovod_allreduce_max": ("other_operations_are_those_of_their_names",),
    "horovod_allreduce_product": ("other_operations_are_those_of_their_names",),
    "horovod_allreduce_inplace": ("an_allreduce_sums_every_type_and_shape_by_name_or_without",),
    "horovod_allreduce_async_fused": ("asynchronous_calls_may_end_in_any_order",),
    "horovod_allreduce_multi_gpu": GPU,
    "horovod_allreduce_prescale": ("factors_scale_before_and_after",),
    "horovod_allreduce_postscale": ("factors_scale_before_and_after",),
    "horovod_allreduce_process_sets": ("process_sets_call_among_themselves",),
    "horovod_allreduce_error": ("ranks_whose_tensors_differ_are_all_told",),
    "horovod_allreduce_type_error": ("ranks_whose_tensors_differ_are_all_told",),
    "horovod_allreduce_cpu_gpu_error": GPU,
    "horovod_allreduce_duplicate_name_error": "differs: a call whose handle was dropped is awaited, others are refused",
    "horovod_allreduce_grad": ("gradients_flow_through_every_collective",),
    "horovod_allreduce_grad_average": ("gradients_flow_through_every_collective",),
    "horovod_allreduce_grad_process_sets": ("process_sets_call_among_themselves",),
    "horovod_grouped_allreduce": ("a_group_is_several_at_once",),
    "horovod_grouped_allreduce_average": ("a_group_is_several_at_once",),
    "horovod_grouped_allreduce_inplace": ("a_group_is_several_at_once",),
    "horovod_grouped_allreduce_process_sets": ("process_sets_call_among_themselves",),
    "horovod_grouped_allreduce_cpu_gpu_error": GPU,
    "horovod_grouped_allreduce_grad": ("gradients_flow_through_every_collective",),
    "horovod_grouped_allreduce_grad_average": ("gradients_flow_through_every_collective",),
    "horovod_grouped_allreduce_grad_process_sets": ("process_sets_call_among_themselves",),
    "horovod_allgather": ("an_allgather_takes_any_number_of_rows",),
    "horovod_allgather_variable_size": ("an_allgather_takes_any_number_of_rows",),
    "horovod_allgather_async_fused": ("an_allgather_takes_any_number_of_rows",),
    "horovod_allgather_process_sets": ("process_sets_call_among_themselves",),
    "horovod_allgather_error": ("ranks_that_call_unlike_are_told_what_each_calls",),
    "horovod_allgather_type_error": ("ranks_that_call_unlike_are_told_what_each_calls",),
    "horovod_allgather_duplicate_name_error": ORDERED,
    "horovod_allgather_grad": ("gradients_flow_through_every_collective",),
    "horovod_allgather_grad_process_sets": ("process_sets_call_among_themselves",),
    "horovod_grouped_allgather": ("an_allgather_takes_any_number_of_rows",),
    "horovod_grouped_allgather_process_sets": ("process_sets_call_among_themselves",),
    "horovod_grouped_allgather_grad": ("gradients_flow_through_every_collective",),
    "horovod_broadcast": ("a_broadcast_takes_any_type_and_may_be_asynchronous",),
    "horovod_broadcast_inplace": ("a_broadcast_takes_any_type_and_may_be_asynchronous",),
    "horovod_broadcast_process_sets": ("process_sets_call_among_themselves",),
    "horovod_broadcast_error": ("ranks_whose_tensors_differ_are_all_told",),
    "horovod_broadcast_type_error": ("ranks_whose_tensors_differ_are_all_told",),
    "horovod_broadcast_rank_error": ("ranks_that_call_unlike_are_told_what_each_calls",),
    "horovod_broadcast_duplicate_name_error": ORDERED,
    "horovod_broadcast_grad": ("gradients_flow_through_every_collective",),
    "horovod_broadcast_grad_process_sets": ("process_sets_call_among_themselves",),
    "horovod_alltoall": ("an_alltoall_splits_as_it_is_told",),
    "horovod_alltoall_equal_split": ("an_alltoall_splits_as_it_is_told",),
    "horovod_alltoall_splits_on_gpu": GPU,
    "horovod_alltoall_process_sets": ("process_sets_call_among_themselves",),
    "horovod_alltoall_type_error": ("ranks_whose_tensors_differ_are_all_told",),
    "horovod_alltoall_equal_split_length_error": ("an_alltoall_splits_as_it_is_told",),
    "horovod_alltoall_splits_error": ("an_alltoall_splits_as_it_is_told",),
    "horovod_alltoall_splits_type_error": ("an_alltoall_splits_as_it_is_told",),
    "horovod_alltoall_rank_error": ("ranks_whose_tensors_differ_are_all_told",),
    "horovod_alltoall_grad": ("gradients_flow_through_every_collective",),
    "horovod_alltoall_equal_split_grad": ("gradients_flow_through_every_collective",),
    "horovod_alltoall_grad_process_sets": ("process_sets_call_among_themselves",),
    "broadcast_state": (
        "parameters_of_any_size_and_type_come_from_the_root",
        "optimizer_state_comes_from_the_root_also_where_there_is_none",
    ),
    "broadcast_state_gpu": GPU,
    "broadcast_state_options": ("optimizer_state_comes_from_the_root_also_where_there_is_none",),
    "broadcast_state_no_grad": "differs: parameters without a gradient have none afterwards; Horovod gives them zeros",
    "broadcast_object": ("objects_travel_as_they_are",),
    "broadcast_object_process_sets": ("process_sets_call_among_themselves",),
    "allgather_object": ("objects_travel_as_they_are",),
    "compression_fp16": ("compression_halves_what_is_pushed",),
    "force_allreduce": ("a_gradient_absent_on_some_ranks_counts_as_zero_and_is_named",),
    "model_parallelism": GPU,
    "delta_optimizer": NOT_THERE + "Adasum",
    "duplicate_names": ("names_that_repeat_or_lack_are_refused",),
    "dynamic_requires_grad": ("layers_that_thaw_are_added_or_refused",),
    "gradient_clipping": ("gradients_may_be_clipped_between_synchronize_and_step",),
    "synchronize_step_warning": NO_LIMIT + "step() after synchronize() sums no second time",
    "no_named_parameters": ("horovods_options_of_the_optimizer_train_alike",),
    "missing_named_parameters": ("names_that_repeat_or_lack_are_refused",),
    "horovod_join_allreduce": ("workers_that_have_joined_count_as_zero",),
    "horovod_join_allgather": ("what_needs_a_worker_that_has_joined_says_so_and_writes_nothing",),
    "horovod_join_broadcast": NO_LIMIT + "a broadcast needs its root alone, whoever else has joined",
    "horovod_sync_batch_norm": ("batch_norm_is_that_of_the_whole_batch",),
    "timeline_api": NOT_THERE + "timeline",
    "optimizer_no_named_parameters": ("horovods_options_of_the_optimizer_train_alike",),
    "sparse_embeddings": (
        "sparse_adam_trains_as_in_one_process",
        "sparse_gradients_stay_sparse_and_are_those_of_all_ranks",
    ),
    "async_sparse_allreduce": ("sparse_tensors_are_gathered_and_added",),
    "async_sparse_allreduce_process_sets": ("sparse_tensors_are_gathered_and_added",),
    "optimizer_process_sets": ("an_optimizer_of_a_process_set_combines_its_members_gradients",),
    "process_set_barrier_op": ("process_sets_call_among_themselves",),
    "global_barrier_op": ("a_name_that_is_under_way_is_refused_and_its_result_stands",),
    "barrier_with_multiple_collectives": ("process_sets_call_among_themselves",),
    "horovod_reducescatter": ("a_reducescatter_gives_each_rank_its_rows",),
    "horovod_reducescatter_average": ("a_reducescatter_gives_each_rank_its_rows",),
    "horovod_reducescatter_prescale": ("a_reducescatter_gives_each_rank_its_rows",),
    "horovod_reducescatter_postscale": ("a_reducescatter_gives_each_rank_its_rows",),
    "horovod_reducescatter_scalar_error": ("a_reducescatter_gives_each_rank_its_rows",),
    "horovod_reducescatter_adasum": NOT_THERE + "Adasum",
    "horovod_reducescatter_async_fused": ("a_reducescatter_gives_each_rank_its_rows",),
    "horovod_reducescatter_error": ("ranks_that_call_unlike_are_told_what_each_calls",),
    "horovod_reducescatter_type_error": ("ranks_whose_tensors_differ_are_all_told",),
    "horovod_reducescatter_duplicate_name_error": ORDERED,
    "horovod_reducescatter_grad": ("gradients_flow_through_every_collective",),
    "horovod_reducescatter_grad_average": ("gradients_flow_through_every_collective",),
    "horovod_reducescatter_process_sets": ("process_sets_call_among_themselves",),
    "horovod_reducescatter_grad_process_sets": ("process_sets_call_among_themselves",),
    "horovod_grouped_reducescatter": ("a_reducescatter_gives_each_rank_its_rows",),
    "horovod_grouped_reducescatter_average": ("a_reducescatter_gives_each_rank_its_rows",),
    "horovod_grouped_reducescatter_prescale": ("a_reducescatter_gives_each_rank_its_rows",),
    "horovod_grouped_reducescatter_postscale": ("a_reducescatter_gives_each_rank_its_rows",),
    "horovod_grouped_reducescatter_scalar_error": ("a_reducescatter_gives_each_rank_its_rows",),
    "horovod_grouped_reducescatter_process_sets": ("process_sets_call_among_themselves",),
    "horovod_grouped_reducescatter_grad": ("gradients_flow_through_every_collective",),
}
"""By test of Horovod, without its `test_`: the claims that check it, or why none does."""


def known_claims() -> set[str]:
    """The names of all claims of coarse.torch."""
    folder = PROGRAM.parent
    return {claim for name in NAMES.values() for claim in claims_of(folder / f"{name.rpartition('.')[2]}.py")}


def check() -> dict[str, str]:
    """By claim what failed on any worker in any layout; empty where it held."""
    os.environ[TAKES_ALL] = "1"
    failed: dict[str, str] = dict.fromkeys(known_claims(), "")
    for workers, devices in LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "coarse.toml"
            config.write_text(CONFIG)
            environ = {"COARSE_CONFIG": str(config), "COARSE_PARTITION": f"{workers}:{devices}"}
            mpirun(workers + devices, PROGRAM, folder, "", *NAMES, env=environ, timeout_s=600)
            for claim, reports in read_reports(Path(folder), workers).items():
                failed[claim] = failed[claim] or next((f"{workers}:{devices}: {text}" for text in reports if text), "")
    return failed


def verdicts(failed: dict[str, str]) -> dict[str, str]:
    """By test of Horovod: "passed", "failed: ..." or why it is left out."""
    found = {}
    for test, claims in TABLE.items():
        if isinstance(claims, str):
            found[test] = claims
        else:
            texts = [failed[claim] for claim in claims if failed[claim]]
            found[test] = f"failed: {texts[0].splitlines()[-1]}" if texts else "passed"
    return found


def counts(found: dict[str, str]) -> dict[str, int]:
    """How many of each kind."""
    kinds = [verdict.partition(":")[0] for verdict in found.values()]
    return {kind: kinds.count(kind) for kind in ("passed", "failed", "differs", "does not apply")}


def main() -> None:
    """Check, count and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = verdicts(check())
    result = {"command": "python -m tests.conformance.horovod", "counts": counts(found), "tests": found}
    given.results.write_text(json.dumps(result, indent=1) + "\n")
    print(*(f"{number} {kind}" for kind, number in result["counts"].items()), sep=", ")
    for test, verdict in found.items():
        if verdict.startswith("failed"):
            print(f"{test}: {verdict}")


if __name__ == "__main__":
    main()
