"""The last worker ends in mid-fit while the others wait for it: `tf_ended_rank.py HOW FOLDER`.

Every worker writes its process id into the folder. Worker 0 catches the error that it gets and writes it into the
folder, unless mpirun ends it before; all others leave theirs uncaught.
"""

import os
import signal
import sys
import time
from pathlib import Path

import coarse
import tests.support.bare_imports  # noqa: F401

how, folder = sys.argv[1], Path(sys.argv[2])
(folder / f"pid{os.environ['PMIX_RANK']}").write_text(str(os.getpid()))
coarse.init({"stall_timeout_s": 150.0})

import keras  # noqa: E402
import numpy as np  # noqa: E402
import psutil  # noqa: E402
import tensorflow as tf  # noqa: E402

from coarse.session import current  # noqa: E402
from tests.support.claims import report_error  # noqa: E402
from tf_strategy import CoarseStrategy, cause_of  # noqa: E402

IS_LAST = coarse.rank() == coarse.size() - 1
STEP = 4


def fail_late(x: np.ndarray) -> np.ndarray:
    """A layer of a user's that breaks on the last worker."""
    fail_late.calls += 1
    if how == "raise" and IS_LAST and fail_late.calls == STEP:
        (folder / "ended").write_text(str(time.perf_counter()))
        raise ArithmeticError("the layer is broken")
    return x


fail_late.calls = 0


class FailsLate(keras.layers.Layer):
    """Calls `fail_late`."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Its argument."""
        y = tf.numpy_function(fail_late, [x], tf.float32)
        y.set_shape(x.shape)
        return x + tf.stop_gradient(y - x)


class EndsLate(keras.callbacks.Callback):
    """What the last worker does after some steps."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """See keras.callbacks.Callback."""
        if batch != STEP or how == "raise":
            return
        if not IS_LAST:
            if how == "interrupt":  # all have traced their functions, which may take longer
                current().require_client().link.stall_timeout_s = 1.0
            return
        (folder / "ended").write_text(str(time.perf_counter()))
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            sys.exit(0)
        if how == "stop":
            self.model.stop_training = True
        if how == "interrupt":
            while not (folder / "stalled").exists():
                time.sleep(0.05)


strategy = CoarseStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), FailsLate(), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
data = tf.data.Dataset.from_tensors((tf.ones([12, 4]), tf.ones([12, 1]))).repeat()
try:
    model.fit(data, steps_per_epoch=1000, epochs=2, verbose=0, callbacks=[EndsLate()])
    if how == "stop":
        model.fit(data, steps_per_epoch=1, verbose=0)
except tf.errors.OpError as error:
    cause = cause_of(error)
    if coarse.rank() == 0 and cause is not None:
        waited_s = time.perf_counter() - float((folder / "ended").read_text())
        report_error(folder, int(os.environ["PMIX_RANK"]), waited_s, cause)
        try:
            strategy.reduce("SUM", 1.0, axis=None)
        except coarse.CoarseError as again:
            if again is cause:
                (folder / "again").touch()
        if how == "interrupt":
            (folder / "stalled").touch()
            parents = psutil.Process().parents()
            launcher = next(one for one in parents if "run" in one.cmdline() and "python" in one.cmdline()[0])
            launcher.send_signal(signal.SIGINT)
            signal.pause()
    raise
