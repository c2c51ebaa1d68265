"""Without CuPy or CUDA there are no GPUs, and an error says why."""

import re
import sys

import pytest

from coarse.errors import ConfigError
from coarse.gpu import available
from coarse.gpu.available import gpus, gpus_if_any, use
from coarse.gpu.interface import lack_of_sharing
from tests.support.gpu_stand_in import StandInGpus


@pytest.fixture(autouse=True)
def _none_chosen():
    use(None)
    yield
    use(None)


def test_without_cupy_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "coarse.gpu.cupy_gpus", raising=False)
    with pytest.raises(ConfigError, match=r"GPUs need CuPy, .*pip install 'coarse-cxl\[cuda\]'"):
        gpus()
    assert gpus_if_any() is None


def test_without_a_gpu_there_are_none(monkeypatch):
    def none_found():
        raise ConfigError("CUDA finds no GPU here")

    monkeypatch.setattr(available, "_cuda_gpus", none_found)
    with pytest.raises(ConfigError, match="no GPU"):
        gpus()
    assert gpus_if_any() is None


def test_what_was_put_in_their_place_is_used():
    stand_in = StandInGpus()
    use(stand_in)
    assert gpus() is stand_in
    assert gpus_if_any() is stand_in


@pytest.mark.parametrize(
    ("name", "compute_mode", "has_mps", "word"),
    [
        ("NVIDIA A100", 0, False, ""),
        ("NVIDIA A100", 3, True, ""),
        ("NVIDIA A100", 3, False, "exclusive process mode.*nvidia-smi -c DEFAULT"),
        ("NVIDIA A100", 2, True, "prohibited mode"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0, False, "MIG mode.*nvidia-smi -mig 0"),
        ("NVIDIA MIGHTY", 0, False, ""),
    ],
)
def test_only_a_whole_gpu_that_processes_may_share_is_one_for_a_memory_device(name, compute_mode, has_mps, word):
    lack = lack_of_sharing(name, compute_mode, has_mps=has_mps)
    assert bool(lack) is bool(word)
    assert re.search(word, lack)
