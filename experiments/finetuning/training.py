"""Fine-tuning step by step: the same losses in every mode, up to rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from experiments.finetuning.batches import BatchPlan
from experiments.finetuning.features import DEFAULT_ROW, Features, RowShape
from experiments.finetuning.models import Lora, inputs_of, labels_of
from experiments.finetuning.teams import Team


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """What to fine-tune, how, and for how long."""

    family: str = "gpt2"
    size: str = "tiny"
    lora: Lora | None = None
    row: RowShape = DEFAULT_ROW
    vocabulary: int = 2000
    steps: int = 100
    batch: int = 16
    """Rows of the global batch of one step."""
    accumulate: int = 1
    """Backward passes per step; they cut the batch and do not change what is learnt."""
    learning_rate: float = 1e-3
    clip: float = 1.0
    """The largest norm of all gradients together."""
    seed: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a run has at least 1 step, got {self.steps}")
        for name in ("learning_rate", "clip"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"FineTuning.{name} must be above 0 and finite, got {getattr(self, name)}")


@dataclass(frozen=True)
class StepRecord:
    """One step: the loss over the global batch, before its update, and this worker's seconds."""

    step: int
    loss: float
    gradient_norm: float
    step_s: float
    num_tokens: int
    """Of the global batch, padding not counted."""
    bytes_between_nodes: dict[str, int]
    """Sent by all workers together, by what for; empty where nobody counts them."""


def learning_rate_at(step: int, settings: FineTuning) -> float:
    """A linear rise over a tenth of the steps, then a linear fall that would reach 0 one step after the last."""
    rise = max(1, settings.steps // 10)
    if step < rise:
        return settings.learning_rate * (step + 1) / rise
    return settings.learning_rate * (settings.steps - step) / (settings.steps - rise + 1)


class Trainer:
    """One worker's model and optimizer; `run` trains to the end."""

    def __init__(
        self, settings: FineTuning, team: Team, model: nn.Module, features: Features, clock: Callable[[], float]
    ) -> None:
        self._settings, self._team, self._features, self._clock = settings, team, features, clock
        self._plan = BatchPlan(
            num_rows=len(features),
            batch=settings.batch,
            passes=settings.accumulate,
            workers=team.size,
            seed=settings.seed,
        )
        self.model, self.optimizer = team.join(model, self._make_optimizer, settings.accumulate)
        self.records: list[StepRecord] = []

    def run(self, on_step: Callable[[StepRecord], None]) -> None:
        """Train all steps; each is reported with its loss averaged over workers."""
        self.model.train()
        for step in range(self._settings.steps):
            record = self._step(step)
            if not math.isfinite(record.loss):
                raise FloatingPointError(f"step {step}: the loss is {record.loss}, no number; lower --learning-rate")
            self.records.append(record)
            on_step(record)

    def _step(self, step: int) -> StepRecord:
        sent_before = self._team.bytes_between_nodes()
        begin_s = self._clock()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(step, self._settings)
        losses = [self._backward(step, part) for part in range(self._settings.accumulate)]
        self._team.synchronize()
        norm = self._team.clip(self.model, self._settings.clip)
        self._team.update()
        step_s = self._clock() - begin_s
        sent = {what: total - sent_before[what] for what, total in self._team.bytes_between_nodes().items()}
        loss, *means = self._team.mean([sum(losses), *map(float, sent.values())], "finetune.step")
        return StepRecord(
            step=step,
            loss=loss,
            gradient_norm=norm,
            step_s=step_s,
            num_tokens=int(self._features.mask[self._plan.rows(step)].sum()),
            bytes_between_nodes={what: round(mean * self._team.size) for what, mean in zip(sent, means, strict=True)},
        )

    def _backward(self, step: int, part: int) -> float:
        """Add one part's gradients; its share of the step's loss."""
        rows = self._features.take(self._plan.cut(step, part, self._team.rank))
        output = self.model(**inputs_of(self._settings.family, rows), **labels_of(rows))
        loss = output.loss / self._settings.accumulate
        loss.backward()
        return float(loss.item())

    def _make_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return torch.optim.AdamW(parameters, lr=self._settings.learning_rate, weight_decay=0.01)
