"""Checks what workers are given of a dataset, and what predict gives back; two workers."""


from tests.mpi.tf.data_fit_claims import (
    a_dataset_that_is_distributed_already_is_split_once,
    a_generator_trains_as_in_one_process,
    a_last_batch_that_leaves_a_worker_no_rows_trains_as_under_mirrored_strategy,
    a_py_dataset_trains_as_in_one_process,
    an_infinite_dataset_trains_for_the_steps_that_are_asked,
    batch_normalization_over_no_rows_is_that_of_mirrored_strategy,
    evaluate_over_a_last_batch_of_no_rows_is_that_of_one_process,
    several_steps_per_execution_and_validation_train_as_in_one_process,
    train_on_batch_and_test_on_batch_take_each_workers_batch_as_its_share,
    weighted_classes_train_as_in_one_process,
    weighted_rows_and_split_validation_train_as_in_one_process,
)
from tests.mpi.tf.data_lent_claims import (
    arrays_are_not_written,
    arrays_of_a_loop_of_one_s_own_are_not_written,
    views_of_a_generator_are_not_written_however_they_are_split,
    views_of_a_py_dataset_are_not_written_by_training,
)
from tests.mpi.tf.data_order_claims import (
    a_function_s_dataset_is_read_as_it_is_by_next_and_in_functions,
    a_shuffled_epoch_takes_every_row_once,
    nested_ragged_and_sparse_rows_reach_their_workers,
    ranks_that_have_drawn_alone_are_warned_where_rows_come_in_another_order,
    ranks_with_different_seeds_are_warned,
)
from tests.mpi.tf.data_predict_claims import (
    predict_gathers_nested_ragged_and_scalar_outputs,
    predict_gives_every_rank_all_rows_in_order,
    predict_gives_rows_of_files_in_order,
    predict_on_batch_gives_the_rows_of_all_workers_batches,
)

CLAIMS = (
    a_shuffled_epoch_takes_every_row_once,  # first: no seed has been set
    a_last_batch_that_leaves_a_worker_no_rows_trains_as_under_mirrored_strategy,
    batch_normalization_over_no_rows_is_that_of_mirrored_strategy,
    evaluate_over_a_last_batch_of_no_rows_is_that_of_one_process,
    several_steps_per_execution_and_validation_train_as_in_one_process,
    weighted_rows_and_split_validation_train_as_in_one_process,
    weighted_classes_train_as_in_one_process,
    an_infinite_dataset_trains_for_the_steps_that_are_asked,
    a_dataset_that_is_distributed_already_is_split_once,
    a_generator_trains_as_in_one_process,
    a_py_dataset_trains_as_in_one_process,
    train_on_batch_and_test_on_batch_take_each_workers_batch_as_its_share,
    predict_gives_every_rank_all_rows_in_order,
    predict_gives_rows_of_files_in_order,
    predict_gathers_nested_ragged_and_scalar_outputs,
    predict_on_batch_gives_the_rows_of_all_workers_batches,
    ranks_with_different_seeds_are_warned,
    ranks_that_have_drawn_alone_are_warned_where_rows_come_in_another_order,
    a_function_s_dataset_is_read_as_it_is_by_next_and_in_functions,
    nested_ragged_and_sparse_rows_reach_their_workers,
    arrays_are_not_written,
    arrays_of_a_loop_of_one_s_own_are_not_written,
    views_of_a_generator_are_not_written_however_they_are_split,
    views_of_a_py_dataset_are_not_written_by_training,
)
