"""Tests of CUDA itself: each is skipped by name where there is no GPU, with the reason. They need numpy, mpi4py, CuPy,
torch and pytest, and nothing else."""

import pytest

from coarse.errors import ConfigError
from coarse.storage.gpu.available import gpus


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        gpus()
    except ConfigError as refused:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=str(refused)))
    for item in items:
        item.add_marker(pytest.mark.gpu)
