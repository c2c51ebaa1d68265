"""Variables of which the strategy needs more than TensorFlow's own do."""

from typing import Any

import tensorflow as tf

from tf_strategy.private_names import SyncOnReadVariable


class FirstReplicaVariable(SyncOnReadVariable):
    """Each worker has its own; read outside of replicas it is rank 0's, where TensorFlow's is the reader's own."""

    def value(self) -> tf.Tensor:
        """A replica's own value within `strategy.run`, rank 0's elsewhere."""
        return tf.convert_to_tensor(self._get())

    def _get_cross_replica(self) -> Any:  # noqa: ANN401
        strategy = self.distribute_strategy
        with strategy.scope():
            (own,) = self.values
            first = strategy.extended.broadcast_to(own.value(), destinations=own)
            return strategy.experimental_local_results(first)[0]


def read_from_rank_0(variable: tf.Variable) -> tf.Variable:
    """The variable itself, or where only the first replica's value counts on reading, one that asks for it."""
    is_first = variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
    if not is_first or not isinstance(variable, SyncOnReadVariable):
        return variable
    return FirstReplicaVariable(variable.distribute_strategy, variable.values, variable.aggregation)
