"""What MirroredStrategy has from TensorFlow 1 and would do for this process alone: refused by name."""

from typing import Any, NoReturn

import tensorflow as tf

import coarse
from coarse.errors import UnsupportedError


class UnsupportedMethods:
    """Stands before MirroredExtended among an extended's bases."""

    def _make_dataset_iterator(self, dataset: Any) -> NoReturn:  # noqa: ANN401
        """Every worker would get the same part of each batch."""
        raise _refused("make_dataset_iterator", "strategy.experimental_distribute_dataset(dataset)")

    def _make_input_fn_iterator(self, input_fn: Any, replication_mode: Any = None) -> NoReturn:  # noqa: ANN401
        """Every worker would be told that it is the only input pipeline."""
        raise _refused("make_input_fn_iterator", "strategy.distribute_datasets_from_function(dataset_fn)")

    def _experimental_make_numpy_dataset(self, numpy_input: Any, session: Any) -> NoReturn:  # noqa: ANN401
        """It needs a session."""
        raise _refused("experimental_make_numpy_dataset", "tf.data.Dataset.from_tensor_slices(arrays)")

    def _experimental_run_steps_on_iterator(
        self, fn: Any, iterator: Any, iterations: Any, initial_loop_values: Any = None  # noqa: ANN401
    ) -> NoReturn:
        """Its results of the last step would be this worker's."""
        raise _refused("experimental_run_steps_on_iterator", "a loop of strategy.run within a tf.function")

    def _configure(
        self,
        session_config: Any = None,  # noqa: ANN401
        cluster_spec: Any = None,  # noqa: ANN401
        task_type: Any = None,  # noqa: ANN401
        task_id: Any = None,  # noqa: ANN401
    ) -> NoReturn:
        """Workers would be looked for in a cluster of TensorFlow's."""
        raise _refused("configure", "mpirun or coarse run, which say who the workers are")


def _refused(method: str, instead: str) -> UnsupportedError:
    return UnsupportedError(
        f"rank {coarse.rank()}: CoarseStrategy does not have TensorFlow 1's {method}(), which would act in this "
        f"process alone; use {instead}"
    )


def require_input_options(options: tf.distribute.InputOptions | None, *, splits: bool) -> None:
    """Return if data can be given as the options ask; `splits` says that it is a dataset of global batches.

    Raises:
        UnsupportedError: they ask for what one replica in each process, reading on its processor, does not have.
    """
    if options is None:
        return
    if options.experimental_place_dataset_on_device:
        raise UnsupportedError(
            f"rank {coarse.rank()}: InputOptions: datasets are read on the processor; leave out "
            "experimental_place_dataset_on_device"
        )
    if splits and options.experimental_replication_mode == tf.distribute.InputReplicationMode.PER_REPLICA:
        raise UnsupportedError(
            f"rank {coarse.rank()}: InputOptions: a dataset of global batches is split over workers, not given to each "
            "replica whole; use strategy.distribute_datasets_from_function, or leave out experimental_replication_mode"
        )
