"""A Keras model of 27 million parameters as `tf_step.py` trains it, the same under every strategy."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from benchmarks.tf_contenders import FIT, NUM_WORKERS, PACKED_PEER, PEER, UNSYNCHRONISED, is_ours, pack_bytes_of

NUM_FEATURES, NUM_UNITS, NUM_LAYERS, NUM_CLASSES = 1024, 2048, 7, 10
_SEED = 1
_NUM_INTRA_OP_THREADS = 1
"""Of one operation: two workers share two cores, as in the other benchmarks."""


class Trainee:
    """A model under one strategy, with the two loops that train it on this worker's part of the data."""

    def __init__(self, strategy: tf.distribute.Strategy, worker: int) -> None:
        self._strategy = strategy
        self.worker = worker
        with strategy.scope():
            keras.utils.set_random_seed(_SEED)
            self._model = dense_model()
            self._optimizer = keras.optimizers.SGD(1e-3, momentum=0.9)
            self._optimizer.build(self._model.trainable_variables)
            self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
            self._model.compile(
                self._optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
            )
        self._step = self._compiled_step()

    def hello(self) -> dict[str, object]:
        """What the benchmark wants to know of this worker."""
        return {
            "worker": self.worker,
            "num_parameters": int(self._model.count_params()),
            "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
        }

    def digest(self) -> str:
        """SHA-256 of all weights."""
        found = hashlib.sha256()
        for weight in self._model.get_weights():
            found.update(np.ascontiguousarray(weight).tobytes())
        return found.hexdigest()

    def train(self, loop: str, rows: int, steps: int) -> float:
        """Seconds of one step, the mean over `steps` of them; one more before them is not timed."""
        return self._fit(rows, steps) if loop == FIT else self._run(rows, steps)

    def _run(self, rows: int, steps: int) -> float:
        batch = [tf.constant(array) for array in batch_of(rows, self.worker)]
        self._step(*batch)
        start_s = time.perf_counter()
        for _ in range(steps):
            self._step(*batch)
        return (time.perf_counter() - start_s) / steps

    def _fit(self, rows: int, steps: int) -> float:
        """Keras gives every worker its part of the global batch, as users write it."""
        is_alone = self._strategy.num_replicas_in_sync == 1
        global_rows = rows if is_alone else rows * NUM_WORKERS
        batch = batch_of(global_rows, self.worker if is_alone else 0)
        dataset = tf.data.Dataset.from_tensors(batch).repeat()
        clock = BatchClock()
        self._model.fit(dataset, steps_per_epoch=steps + 1, verbose=0, callbacks=[clock])
        return (clock.ends_s[-1] - clock.ends_s[0]) / steps

    def marks(self, rows: int, steps: int) -> list[dict[str, object]]:
        """Of each step when it began, backward ended and it ended, and its transfers; coarse alone records those.

        Seconds since the step's begin, on this worker. One step before them is not returned.
        """
        from tf_strategy import CoarseStrategy

        assert isinstance(self._strategy, CoarseStrategy), "nobody else records"
        batch = [tf.constant(array) for array in batch_of(rows, self.worker)]
        marked_step = self._compiled_step(marked=True)
        found = []
        for _ in range(steps + 1):
            with self._strategy.transfers_recorded() as recorder:
                begin_s = time.perf_counter()
                marks = marked_step(*batch)
                end_s = time.perf_counter()
            backward_ended_s = float(self._strategy.experimental_local_results(marks)[0])
            transfers = [
                {**asdict(transfer), "begin_s": transfer.begin_s - begin_s, "end_s": transfer.end_s - begin_s}
                for transfer in recorder.transfers
            ]
            found.append(
                {"backward_ended_s": backward_ended_s - begin_s, "end_s": end_s - begin_s, "transfers": transfers}
            )
        return found[1:]

    def _compiled_step(self, *, marked: bool = False) -> Callable[..., object]:
        features = tf.TensorSpec([None, NUM_FEATURES], tf.float32)
        labels = tf.TensorSpec([None], tf.int64)

        @tf.function(input_signature=[features, labels])
        def step(batch_features: tf.Tensor, batch_labels: tf.Tensor) -> object:
            replica_step = partial(self._replica_step, marked=marked)
            return self._strategy.run(replica_step, args=(batch_features, batch_labels))

        return step

    def _replica_step(self, features: tf.Tensor, labels: tf.Tensor, *, marked: bool) -> tf.Tensor:
        """The step as TensorFlow's guide to custom loops writes it: each replica's loss over the global batch.

        Returns the loss, or where `marked` the seconds of time.perf_counter at which all gradients were there.
        """
        with tf.GradientTape() as tape:
            global_rows = tf.cast(tf.shape(features)[0], tf.float32) * self._strategy.num_replicas_in_sync
            loss = self._loss(labels, self._model(features, training=True)) / global_rows
        gradients = tape.gradient(loss, self._model.trainable_variables)
        backward_ended = loss
        if marked:
            gradients, times_s = zip(*map(_timed, gradients), strict=True)
            backward_ended = tf.reduce_max(tf.stack(times_s))
        self._optimizer.apply(gradients, self._model.trainable_variables)
        return backward_ended if marked else loss


class BatchClock(keras.callbacks.Callback):
    """When each batch of `fit` ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends_s: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """See keras.callbacks.Callback."""
        self.ends_s.append(time.perf_counter())


def _timed(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The tensor, and the seconds of time.perf_counter when it was there; nobody gets it before they were noted.

    Not by tf.timestamp: stateful operations keep the program's order, so that every push would wait for it. And could
    the tensor be had before, a single thread might note the time at the end of the step.
    """
    first = tf.reshape(tensor, [-1])[:1]
    time_s = tf.numpy_function(lambda _: np.float64(time.perf_counter()), [first], tf.float64, stateful=False)
    with tf.control_dependencies([time_s]):
        return tf.identity(tensor), time_s


def dense_model() -> keras.Model:
    """A perceptron of 27.3 million parameters, 104 MiB of gradients: 6 of its layers have 16 MiB each."""
    hidden = [keras.layers.Dense(NUM_UNITS, activation="relu") for _ in range(NUM_LAYERS)]
    return keras.Sequential([keras.Input((NUM_FEATURES,)), *hidden, keras.layers.Dense(NUM_CLASSES)])


def batch_of(rows: int, worker: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, NUM_FEATURES) float32 and (rows,) int64, different for each worker."""
    random = np.random.default_rng(_SEED + worker)
    features = random.standard_normal((rows, NUM_FEATURES), dtype=np.float32)
    return features, random.integers(NUM_CLASSES, size=rows)


def open_trainee(contender: str, worker: int | None, num_inter_op_threads: int) -> Trainee:
    """The trainee of a contender; `worker` is this one's number, None where coarse's launcher gives it."""
    tf.config.threading.set_intra_op_parallelism_threads(_NUM_INTRA_OP_THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(num_inter_op_threads)
    if is_ours(contender):
        import coarse
        from tf_strategy import CoarseStrategy

        strategy = CoarseStrategy()
        return Trainee(strategy, coarse.rank())
    assert worker is not None, "tf_jobs.py numbers the workers of all others"
    if contender in (PEER, PACKED_PEER):
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=pack_bytes_of(contender))
        return Trainee(tf.distribute.MultiWorkerMirroredStrategy(communication_options=options), worker)
    assert contender == UNSYNCHRONISED, contender
    return Trainee(tf.distribute.get_strategy(), worker)
