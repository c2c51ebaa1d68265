"""Checks the claims of several modules in one job: `tf_claims.py FOLDER THREADS MODULE...`.

THREADS is how many operations TensorFlow runs at once; 0 leaves it alone.
"""

import os
import sys
from importlib import import_module

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import coarse
from tests.mpi.claims import report_claims

NAMES = {
    "fit": "tests.mpi.programs.tf_fit_claims",
    "modes": "tests.mpi.programs.tf_mode_claims",
    "loops": "tests.mpi.programs.tf_loop_claims",
    "order": "tests.mpi.programs.tf_order_claims",
    "layers": "tests.mpi.programs.tf_layer_claims",
    "callbacks": "tests.mpi.programs.tf_callback_claims",
    "logs": "tests.mpi.programs.tf_log_claims",
    "equality": "tests.mpi.programs.tf_equality_claims",
    "draws": "tests.mpi.programs.tf_draw_claims",
    "files": "tests.mpi.programs.tf_file_claims",
}
"""The modules that may be named."""


def main(folder: str, threads: str, *names: str) -> None:
    """Report every claim of the modules."""
    coarse.init()  # memory devices stay in here, and import no TensorFlow
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_inter_op_parallelism_threads(int(threads))
    (processor,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
    modules = [import_module(NAMES[name]) for name in names]
    report_claims([claim for module in modules for claim in module.CLAIMS], folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
