"""Small models, and what they are compared with, for jobs that train with CoarseStrategy."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import keras
import numpy as np

import coarse
from coarse.parallel.data.byte_stream import stream_blobs
from coarse.protocol.dtypes import DType, Op
from coarse.session import current
from tf_strategy import CoarseStrategy
from tf_strategy.sums.reduction import ReducedTensors

BATCH, STEPS = 16, 5
"""Rows of a global batch, and batches of an epoch."""

Build = Callable[[], keras.Model]


@cache
def strategy() -> CoarseStrategy:
    """The strategy of this process."""
    return CoarseStrategy()


def rows(num_rows: int = BATCH * STEPS, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(num_rows, 16) and (num_rows, 4) float32, equal on all ranks."""
    numbers = np.random.default_rng(seed)
    return numbers.normal(size=(num_rows, 16)).astype("f4"), numbers.normal(size=(num_rows, 4)).astype("f4")


def dense(units: int, seed: int, **settings: object) -> keras.layers.Dense:
    """A layer whose first weights are equal wherever it is built."""
    return keras.layers.Dense(units, kernel_initializer=keras.initializers.GlorotUniform(seed=seed), **settings)


def mlp(*between: keras.layers.Layer, hidden: int = 24) -> keras.Model:
    """16 -> hidden -> 4, with layers between."""
    first, last = dense(hidden, 1, activation="relu"), dense(4, 2)
    return keras.Sequential([keras.layers.Input((16,)), first, *between, last])


def compiled(model: keras.Model, optimizer: object = None, **settings: object) -> keras.Model:
    """The model, compiled for `rows`."""
    settings = {"loss": "mse", "metrics": ["mae"], **settings}
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.05, momentum=0.9), **settings)
    return model


class BehindWeights(keras.optimizers.SGD):
    """Weights that stay half-way between SGD's and copies of them, which begin as the weights do when it is built."""

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        (self._copies,) = self.add_optimizer_variables(variables, ["copy"])
        for copy, variable in zip(self._copies, variables, strict=True):
            self.assign(copy, keras.ops.copy(variable))

    def update_step(self, gradient: object, variable: keras.Variable, learning_rate: object) -> None:
        super().update_step(gradient, variable, learning_rate)
        copy = self._copies[self._get_variable_index(variable)]
        self.assign(copy, 0.5 * (copy + variable))
        self.assign(variable, copy)


def twins(build: Build) -> tuple[keras.Model, keras.Model]:
    """The same model on the strategy, and on this process alone, where it runs eagerly, since tracing takes longest."""
    with strategy().scope():
        ours = build()
    alone = build()
    alone.run_eagerly = True
    return ours, alone


def fit(model: keras.Model, epochs: int = 2, **settings: object) -> dict[str, list[float]]:
    """The history of training on `rows` in order."""
    given = {"x": rows()[0], "y": rows()[1], "batch_size": BATCH, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(**{**given, **settings}).history


# --- comparisons


def everywhere(array: object) -> list[bytes]:
    """By rank the bits of an array, whatever its shape there."""
    return stream_blobs(np.ascontiguousarray(array).tobytes(), "tests/everywhere")


def require_same_everywhere(arrays: Sequence[object]) -> None:
    """All ranks have the same bits."""
    found = everywhere(np.concatenate([np.asarray(array).reshape(-1).astype("f8") for array in arrays] or [[]]))
    assert all(bits == found[0] for bits in found), "ranks differ"


def require_close(ours: Sequence[object], wanted: Sequence[object], rtol: float = 1e-5) -> None:
    """Every array is as far as `rtol` of its norm at most from what is wanted."""
    assert len(ours) == len(wanted)
    for number, (mine, other) in enumerate(zip(ours, wanted, strict=True)):
        mine, other = np.asarray(mine, "f8"), np.asarray(other, "f8")
        assert mine.shape == other.shape
        off, norm = np.linalg.norm(mine - other), np.linalg.norm(other)
        assert off <= rtol * norm, f"array {number}, {mine.shape}: off by {off} of {norm}"


def require_same_model_everywhere(model: keras.Model) -> None:
    """A model's weights and its optimizer's have the same bits on all ranks."""
    require_same_everywhere([np.asarray(variable) for variable in [*model.variables, *model.optimizer.variables]])


def require_equal(ours: keras.Model, wanted: keras.Model, rtol: float = 1e-5) -> None:
    """A model's weights and its optimizer's are one process's, and the same bits on all ranks."""
    require_same_model_everywhere(ours)
    require_close(ours.get_weights(), wanted.get_weights(), rtol)


def require_same_history_everywhere(history: dict[str, list[float]]) -> None:
    """Losses and metrics have the same bits on all ranks."""
    require_same_everywhere([history[name] for name in sorted(history)])


def require_history(ours: dict[str, list[float]], wanted: dict[str, list[float]], rtol: float = 1e-5) -> None:
    """Losses and metrics of each epoch are one process's."""
    assert sorted(ours) == sorted(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(ours[name], values, rtol=rtol, atol=1e-7, err_msg=name)


def require_same_history(ours: dict[str, list[float]], wanted: dict[str, list[float]], rtol: float = 1e-5) -> None:
    """Losses and metrics of each epoch are one process's, and the same on all ranks."""
    require_same_history_everywhere(ours)
    require_history(ours, wanted, rtol)


# --- pushes


def buckets_of(shapes: Sequence[Sequence[int]], wire: DType = DType.FLOAT32) -> list[str]:
    """The keys of the buckets that the sum of such tensors has."""
    tensors = ReducedTensors(Op.SUM, (wire,) * len(shapes), tuple(tuple(shape) for shape in shapes))
    return [plan.descriptor.name for plan in tensors.plans(current().config.bucket_bytes)]


def num_pushes(keys: Sequence[str]) -> int:
    """How often this worker has pushed these keys so far."""
    counts = coarse.statistics()["keys"]
    return sum(counts[key]["pushes"] for key in keys if key in counts)


@contextmanager
def pushed(steps: int, variables: Sequence[object]) -> Iterator[None]:
    """Within, every bucket of these variables' gradients is pushed once in each step."""
    keys = buckets_of([tuple(variable.shape) for variable in variables])
    before = num_pushes(keys)
    yield
    found = num_pushes(keys) - before
    assert found == steps * len(keys), f"{found} pushes in {steps} steps of {len(keys)} buckets"


def trained_alike(build: Build, *, rtol: float = 1e-5, epochs: int = 2, **settings: object) -> keras.Model:
    """Both models trained by `fit`, compared in all that they have, and pushes counted; returns ours.

    All ranks have the same bits, so that one of them alone trains the other model.
    """
    ours, alone = twins(build)
    num_steps = epochs * -(-len(settings.get("x", rows()[0])) // BATCH)
    with pushed(num_steps, ours.trainable_variables):
        found = fit(ours, epochs, **settings)
    require_same_model_everywhere(ours)
    require_same_history_everywhere(found)
    if coarse.rank() == 0:
        wanted = fit(alone, epochs, **settings)
        require_close(ours.get_weights(), alone.get_weights(), rtol)
        require_history(found, wanted)
    return ours
