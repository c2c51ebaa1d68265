"""Every test of these rooms starts ranks under mpirun, and is marked so; files that take longest come first."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
LONGEST = (
    "tf/test_training.py",
    "luwu/test_resume.py",
    "odc/test_odc.py",
    "tf/test_data.py",
    "arrays/test_arrays.py",
    "failures/test_launch.py",
    "luwu/test_network.py",
    "failures/test_bad_input.py",
    "torch/test_torch.py",
    "cluster/test_cluster.py",
    "sharding/test_sharding.py",
    "torch/test_gpu_torch.py",
    "luwu/test_training.py",
    "emulation/test_emulated.py",
    "torch/test_allreduce.py",
    "experiments/test_finetune.py",
    "sharding/test_gpu_sharding.py",
    "arrays/test_gpu.py",
    "torch/test_torchrun.py",
    "arrays/test_snapshot.py",
    "experiments/test_keras.py",
    "tf/test_bad_input.py",
    "arrays/test_pool.py",
)
"""Files in descending order of their time, so that no core ends with a long one while the other has nothing left."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {HERE / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.mpi)
