"""Checks the claims of several modules in one job: `training_claims.py FOLDER THREADS MODULE...`.

THREADS is how many operations TensorFlow runs at once; 0 leaves it alone. "0,CPU:1": the strategy's device is the
second of two, where its variables lie and its functions run, as on a GPU: tensors come to the first by copies.
"""

import os
import sys
from importlib import import_module

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import coarse
from tests.support.claims import report_claims

NAMES = {
    "dual": "tests.mpi.tf.dual_claims",
    "fit": "tests.mpi.tf.fit_claims",
    "modes": "tests.mpi.tf.mode_claims",
    "loops": "tests.mpi.tf.loop_claims",
    "order": "tests.mpi.tf.order_claims",
    "layers": "tests.mpi.tf.layer_claims",
    "callbacks": "tests.mpi.tf.callback_claims",
    "logs": "tests.mpi.tf.log_claims",
    "equality": "tests.mpi.tf.equality_claims",
    "draws": "tests.mpi.tf.draw_claims",
    "files": "tests.mpi.tf.file_claims",
    "devices": "tests.mpi.tf.device_claims",
    "sent": "tests.mpi.tf.sent_claims",
}
"""The modules that may be named."""


def main(folder: str, threads: str, *names: str) -> None:
    """Report every claim of the modules."""
    coarse.init()  # memory devices stay in here, and import no TensorFlow
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    number, _, device = threads.partition(",")
    tf.config.threading.set_inter_op_parallelism_threads(int(number))
    (processor,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
    if device:
        from tf_strategy import strategy

        strategy._device = lambda: device
    modules = [import_module(NAMES[name]) for name in names]
    report_claims([claim for module in modules for claim in module.CLAIMS], folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
