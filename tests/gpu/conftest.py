"""Tests of CUDA itself: each is skipped by name where there is no GPU, with the reason. They need numpy, mpi4py, CuPy,
torch and pytest, and nothing else."""

from pathlib import Path

import pytest

from coarse.errors import ConfigError
from coarse.gpu.available import gpus

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]  # of a run that may have other tests too
    for item in ours:
        item.add_marker(pytest.mark.gpu)
    try:
        gpus()
    except ConfigError as refused:
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=str(refused)))
