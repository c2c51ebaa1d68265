"""Every test of these rooms starts ranks under mpirun, and is marked so; files that take longest come first."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
LONGEST = (
    "luwu/test_resume.py",
    "tf/test_training.py",
    "odc/test_odc.py",
    "failures/test_launch.py",
    "arrays/test_arrays.py",
    "cluster/test_cluster.py",
    "luwu/test_network.py",
    "sharding/test_sharding.py",
    "tf/test_data.py",
    "torch/test_torch.py",
    "tf/test_bad_input.py",
    "experiments/test_keras.py",
    "emulation/test_emulated.py",
    "arrays/test_pool.py",
    "failures/test_bad_input.py",
    "torch/test_allreduce.py",
)
"""Files in descending order of their time, so that no core ends with a long one while the other has nothing left."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {HERE / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.mpi)
