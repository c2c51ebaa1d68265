# Pure: no MPI, threads, clock or environment.
"""Supported versions of TensorFlow and Keras, and of Keras' backend; others are refused by name.

The strategy overrides private methods of TensorFlow and calls some of Keras': a version that calls them differently
could train without synchronising.
"""

import re

from coarse.errors import ConfigError, UnsupportedVersionError

OLDEST_TENSORFLOW = (2, 18)
NEWEST_TENSORFLOW = (2, 21)
OLDEST_KERAS = (3, 10)
"""First Keras whose metrics keep their sums on each replica until they are read, and are reduced only then."""
NEWEST_KERAS = (3, 15)
LEGACY_VALUES = ("1", "true", "True")
"""Values of TF_USE_LEGACY_KERAS for which TensorFlow takes `tf.keras` from the package tf_keras, which is Keras 2."""


def require_supported(*, tensorflow: str, keras: str, legacy_keras: str | None) -> None:
    """Return if these versions, such as "2.21.0", are supported; `legacy_keras` is TF_USE_LEGACY_KERAS.

    Raises:
        UnsupportedVersionError: one is not, with what was found, the versions that are and what to do.
    """
    _require("tensorflow", tensorflow, OLDEST_TENSORFLOW, NEWEST_TENSORFLOW)
    _require("keras", keras, OLDEST_KERAS, NEWEST_KERAS)
    if legacy_keras in LEGACY_VALUES:
        raise UnsupportedVersionError(
            f"CoarseStrategy works with Keras 3, and TF_USE_LEGACY_KERAS={legacy_keras} makes tf.keras Keras 2; "
            "unset this variable"
        )


def require_tensorflow_backend(backend: str) -> None:
    """Return if Keras computes by TensorFlow; `backend` is what `keras.config.backend()` says.

    Raises:
        ConfigError: models of another backend never ask a strategy, so each worker would train by itself.
    """
    if backend != "tensorflow":
        raise ConfigError(
            f"CoarseStrategy wants Keras' backend to be 'tensorflow', and it is {backend!r}, under which each worker "
            "would train by itself; set KERAS_BACKEND=tensorflow before Keras is imported",
            key="KERAS_BACKEND",
        )


def _require(package: str, found: str, oldest: tuple[int, int], newest: tuple[int, int]) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or not oldest <= (int(numbers[1]), int(numbers[2])) <= newest:
        wanted = f"{package}>={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
        raise UnsupportedVersionError(
            f'CoarseStrategy works with {wanted}, and {package} {found} is installed; pip install "{wanted}"'
        )
