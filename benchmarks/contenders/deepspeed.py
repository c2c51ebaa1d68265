"""DeepSpeed's ZeRO-3 on CPU over Gloo, a peer of the sharding modes; not among the requirements.

pip install --no-deps deepspeed==0.19.8 py-cpuinfo hjson ninja msgpack einops tqdm
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
        os.environ |= {
            "DS_ACCELERATOR": "cpu",
            "LOCAL_SIZE": str(ct.local_size()),
            "LOCAL_RANK": str(ct.local_rank()),
        }
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        import deepspeed

        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
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
