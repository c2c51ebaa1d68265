"""CoarseStrategy, which takes the place of `tf.distribute.MirroredStrategy()` in a script."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

import coarse
from coarse.errors import ConfigError
from coarse.protocol.config import Config
from coarse.session import current, is_initialized
from coarse.strategy.strategy import Exchanges
from tf_strategy import failures
from tf_strategy.agreement.file_callbacks import write_on_one_rank
from tf_strategy.agreement.step_outputs import means_of_all, rows_of_all
from tf_strategy.data.datasets import refuse_data_without_a_batch, share_seed
from tf_strategy.draws import draw_apart
from tf_strategy.extended import CoarseExtended
from tf_strategy.gradients import sum_before_optimizers
from tf_strategy.private_keras import is_keras_logged_step, is_keras_predict_step
from tf_strategy.sums.operations import Operations
from tf_strategy.sums.rounds import Recorder, Rounds

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.parallel.data.reducer import DualSync

_made: "CoarseStrategy | None" = None


class CoarseStrategy(tf.distribute.Strategy):
    """Data-parallel training over workers and memory devices (COARSE, HPCA 2022, section IV).

    One process, one replica: run the script under `mpirun` or `coarse run`, on every worker. Making the strategy joins
    the job, as `coarse.init` does (unless that was called before): memory devices never return from it.

    Args:
        config: see `coarse.init`.

    Raises:
        ConfigError: a second strategy, one within another's scope, or a configuration that cannot work.
    """

    _collective_key_base = 0

    def __init__(self, config: Config | Mapping[str, object] | str | Path | None = None) -> None:
        global _made
        _require_alone()
        if not is_initialized():
            coarse.init(config)
        elif config is not None:
            raise ConfigError(
                f"rank {coarse.rank()}: coarse.init() was called before, with its own config; pass config to one of "
                "the two"
            )
        if current().strategy.exchanges is Exchanges.UPDATES:
            raise ConfigError(
                f"mode {current().config.mode} exchanges updates of optimizers, which CoarseStrategy does not; take a "
                "strategy that exchanges gradients, or coarse.torch",
                key="mode",
            )
        rounds = Rounds(current())
        self._operations = Operations(rounds)
        super().__init__(CoarseExtended(self, _device(), self._operations))
        self._rounds = rounds
        with tf.init_scope():  # a strategy may be made where a tf.function first needs it
            self.has_seed = share_seed(self._operations)
            """True if the script had set TensorFlow's global seed before."""
        failures.name_causes_at_the_end()
        sum_before_optimizers()
        draw_apart()
        refuse_data_without_a_batch(self, self._operations)
        write_on_one_rank(self, self._operations)
        _made = self

    @property
    def is_chief(self) -> bool:
        """True if this is rank 0, which writes checkpoints, logs and models for all."""
        return self.extended.is_chief

    @property
    def dual_sync(self) -> "DualSync | None":
        """Measurements and decision of the first steps (COARSE III-F) for the largest sum; None until then.

        The fields are those of DistributedOptimizer.dual_sync.
        """
        return self._rounds.dual_sync

    @contextmanager
    def scope(self) -> Iterator[tf.distribute.Strategy]:
        """Make variables for this strategy within the block, and raise synchronisation errors with their types."""
        with failures.typed(), super().scope():
            yield self

    def gather_bytes(self, blob: bytes) -> list[bytes]:
        """Return all workers' bytes, in order of rank; all call it in one order, outside of tf.functions."""
        return [array.tobytes() for array in self._rounds.gather(np.frombuffer(blob, np.uint8))]

    @contextmanager
    def transfers_recorded(self) -> Iterator[Recorder]:
        """Record every bucket's push and take within the block, at a cost of some microseconds each."""
        self._rounds.recorder = recorder = Recorder()
        try:
            yield recorder
        finally:
            self._rounds.recorder = None

    @failures.with_typed_errors
    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run a function on every replica; Keras' own loops get all ranks' rows, or the means of logs."""
        outputs = super().run(fn, *args, **kwargs)
        if is_keras_predict_step(fn):
            return rows_of_all(self._operations, outputs)
        return means_of_all(self._operations, outputs) if is_keras_logged_step(fn) else outputs

    @failures.with_typed_errors
    def reduce(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Reduce a value (tf.distribute.Strategy.reduce)."""
        return super().reduce(*args, **kwargs)


def _require_alone() -> None:
    if _made is not None:
        raise ConfigError(
            f"rank {coarse.rank()}: this process has a CoarseStrategy already; make one, at the start, and use it "
            "everywhere"
        )
    if tf.distribute.has_strategy():
        inside = type(tf.distribute.get_strategy()).__name__
        raise ConfigError(f"a CoarseStrategy was made within the scope of a {inside}; make it outside, in its place")


def _device() -> str:
    """Return the name of this worker's GPU, by its number on the node, else of its processor."""
    gpus = tf.config.list_logical_devices("GPU")
    return gpus[coarse.local_rank() % len(gpus)].name if gpus else "CPU:0"
