"""DeepSpeed's ZeRO-3 and ZeRO-Infinity on CPU over Gloo; not among the requirements.

pip install --no-deps deepspeed==0.19.8 py-cpuinfo hjson ninja msgpack einops tqdm
apt install libaio-dev      (ZeRO-Infinity alone, whose asynchronous reads and writes are built by it)
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

import coarse.torch as ct
from benchmarks.sharded_contenders import Contender
from benchmarks.sharded_training import batch_of, gpt_for, weights_of


class DeepSpeedTrainee:
    """The model of `ShardedTrainee`, and its batch, under ZeRO-3."""

    def __init__(self, contender: Contender, rows: int) -> None:
        deepspeed = _open()
        self.contender = contender
        model = gpt_for(contender)
        self.weights = weights_of(model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._engine: Any = deepspeed.initialize(model=model, model_parameters=trained, config=_config(rows))[0]
        self._tokens, self._targets = batch_of(rows, ct.rank())

    def step(self) -> None:
        """One training step."""
        loss: torch.Tensor = self._engine(self._tokens, self._targets)
        self._engine.backward(loss)
        self._engine.step()


def _config(rows: int) -> dict[str, object]:
    """As DeepSpeed's documentation sets up ZeRO-3, with torch's AdamW: its own needs a compiler."""
    return {
        "train_micro_batch_size_per_gpu": rows,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }


class DeepSpeedInfinity:
    """ZeRO-Infinity's optimizer: shards of the states on the disk, each block a group of its own.

    Reads and writes are pipelined; buffers for as many groups as that needs, and queues as its documentation has them.
    """

    def __init__(self, model: torch.nn.Module, storage: str, block_elements: int) -> None:
        deepspeed = _open()
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {
                "stage": 3,
                "sub_group_size": block_elements,
                "offload_optimizer": {
                    "device": "nvme", "nvme_path": storage, "pipeline_read": True, "pipeline_write": True,
                    "buffer_count": 12,
                },
            },
            "aio": {"block_size": 1 << 20, "queue_depth": 8, "thread_count": 1, "overlap_events": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        }  # fmt: skip
        parameters = list(model.parameters())
        self.engine: Any = deepspeed.initialize(model=model, model_parameters=parameters, config=config)[0]

    def backward(self, loss: torch.Tensor) -> None:
        """Of a loss that the engine has computed."""
        self.engine.backward(loss)

    def step(self) -> None:
        """The optimizer's, which forgets gradients, too."""
        self.engine.step()

    def zero_grad(self) -> None:
        """`step` has done it."""

    def close(self) -> None:
        """Nothing is kept."""


def _open() -> Any:  # noqa: ANN401
    """DeepSpeed, on workers that coarse has started."""
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "LOCAL_SIZE": str(ct.local_size()),
        "LOCAL_RANK": str(ct.local_rank()),
    }
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    import deepspeed

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    return deepspeed
