"""Which versions are refused, in which words, and that setup.py and the pins of make test-versions say the same."""

import re
import sys
from importlib import import_module
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from coarse.errors import ConfigError, UnsupportedVersionError
from tf_strategy.versions import (
    NEWEST_KERAS,
    NEWEST_TENSORFLOW,
    OLDEST_KERAS,
    OLDEST_TENSORFLOW,
    require_supported,
    require_tensorflow_backend,
)

REPOSITORY = Path(__file__).parents[3]
PINS = [path.read_text() for path in sorted((REPOSITORY / "tests" / "versions").glob("tensorflow-*.txt"))]


def minor(version: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    first, second = version.split(".")[:2]
    return int(first), int(second)


def pinned(package: str) -> set[tuple[int, int]]:
    """The versions of a package in all environments of make test-versions."""
    return {minor(version) for text in PINS for version in re.findall(rf"^{package}==(\S+)$", text, re.MULTILINE)}


def test_the_installed_versions_are_supported():
    require_supported(tensorflow=tf.__version__, keras=keras.__version__, legacy_keras=None)


@pytest.mark.parametrize("tensorflow", ["2.18.0", "2.18.1", "2.19.1", "2.20.0", "2.21.0", "2.21.1rc0"])
@pytest.mark.parametrize("keras", ["3.10.0", "3.11.3", "3.15.1"])
def test_every_version_between_oldest_and_newest_is_supported(tensorflow, keras):
    require_supported(tensorflow=tensorflow, keras=keras, legacy_keras="0")


@pytest.mark.parametrize("found", ["1.15.5", "2.9.0", "2.17.1", "2.22.0", "2.22.0-dev20261101", "3.0.0", "unknown"])
def test_another_tensorflow_is_refused_with_what_was_found_and_what_is_wanted(found):
    with pytest.raises(UnsupportedVersionError, match=rf"tensorflow>=2\.18,<2\.22.*tensorflow {re.escape(found)} is"):
        require_supported(tensorflow=found, keras="3.15.1", legacy_keras=None)


@pytest.mark.parametrize("found", ["2.15.0", "3.9.2", "3.16.0", "4.0.0"])
def test_another_keras_is_refused_with_what_was_found_and_what_is_wanted(found):
    with pytest.raises(UnsupportedVersionError, match=rf"keras>=3\.10,<3\.16.*keras {re.escape(found)} is"):
        require_supported(tensorflow="2.21.0", keras=found, legacy_keras=None)


@pytest.mark.parametrize("value", ["1", "true", "True"])
def test_keras_2_by_the_environment_is_refused(value):
    with pytest.raises(UnsupportedVersionError, match=r"TF_USE_LEGACY_KERAS=.*Keras 2; unset"):
        require_supported(tensorflow="2.21.0", keras="3.15.1", legacy_keras=value)


def test_keras_on_another_backend_is_refused():
    require_tensorflow_backend(keras.config.backend())
    with pytest.raises(ConfigError, match="'torch', under which each worker would train by itself; set KERAS_BACKEND"):
        require_tensorflow_backend("torch")


def test_importing_the_strategy_under_another_tensorflow_ends_with_the_typed_error(monkeypatch):
    monkeypatch.setattr(tf, "__version__", "2.17.1")
    for name in [name for name in sys.modules if name.split(".")[0] == "tf_strategy"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UnsupportedVersionError, match=r"tensorflow 2\.17\.1 is installed"):
        import_module("tf_strategy")


def test_an_environment_is_pinned_for_every_tensorflow_supported_and_for_the_oldest_and_newest_keras():
    (major, oldest), (_, newest) = OLDEST_TENSORFLOW, NEWEST_TENSORFLOW
    assert pinned("tensorflow-cpu") == {(major, number) for number in range(oldest, newest + 1)}
    assert (min(pinned("keras")), max(pinned("keras"))) == (OLDEST_KERAS, NEWEST_KERAS)


def test_the_extra_of_setup_py_wants_the_versions_supported():
    (extra,) = re.findall(r'"tensorflow": (\[.*?\])', (REPOSITORY / "setup.py").read_text())
    oldest = [f"{major}.{number}" for major, number in (OLDEST_TENSORFLOW, OLDEST_KERAS)]
    after = [f"{major}.{number + 1}" for major, number in (NEWEST_TENSORFLOW, NEWEST_KERAS)]
    assert extra == f'["tensorflow>={oldest[0]},<{after[0]}", "keras>={oldest[1]},<{after[1]}"]'
