"""A GPT of GPT-2's shape whose parameters are sharded, trained in one of the modes of `coarse.torch.fully_shard`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import coarse.torch as ct
from benchmarks.sharded_contenders import Contender, Weights
from experiments.gpt.model import NUM_BYTES, Block, Gpt, GptShape

SHAPE = GptShape(layers=8, width=512, heads=8, context=32)
"""25 million parameters: 101 MB in float32."""
LORA_RANK = 8
_SEED = 1


class ShardedTrainee:
    """A sharded model and its optimizer, on this worker's batch of `rows` texts."""

    def __init__(self, contender: Contender, rows: int) -> None:
        self.contender = contender
        model = gpt_for(contender)
        self.weights = weights_of(model)
        self._model = ct.fully_shard(model, mode=contender.mode, collective=contender.collective, units=[Block])
        self._optimizer = torch.optim.AdamW([p for p in self._model.parameters() if p.requires_grad], lr=1e-3)
        self._tokens, self._targets = batch_of(rows, ct.rank())
        self._loss: Tensor | None = None

    def forward(self) -> None:
        """Compute the loss."""
        self._loss = self._model(self._tokens, self._targets)

    def backward(self) -> float:
        """Compute the gradients, update the parameters, and return the loss."""
        assert self._loss is not None
        self._loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(self._loss.detach())

    def step(self) -> None:
        """One training step."""
        self.forward()
        self.backward()


def gpt_for(contender: Contender) -> nn.Module:
    """The model before it is sharded, equal on all ranks."""
    torch.manual_seed(_SEED)
    model = Gpt(SHAPE)
    return with_adapters(model) if contender.is_lora else model


def with_adapters(model: nn.Module) -> nn.Module:
    """The model with LoRA adapters beside its attention's matrices, all else frozen (FCDP VI-C)."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=LORA_RANK, target_modules=["inputs", "output"])
    adapted = inject_adapter_in_model(config, model)
    assert isinstance(adapted, nn.Module)
    return adapted


def weights_of(model: nn.Module) -> Weights:
    """Bytes of the model's parameters."""
    parameters = list(model.parameters())
    return Weights(
        all_bytes=sum(parameter.nbytes for parameter in parameters),
        trained_bytes=sum(parameter.nbytes for parameter in parameters if parameter.requires_grad),
    )


def batch_of(rows: int, worker: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets of this worker, each (rows, context) int64."""
    generator = torch.Generator().manual_seed(_SEED + worker)
    text = torch.randint(NUM_BYTES, (rows, SHAPE.context + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()
