"""Data-parallel training of the GPT, with each step's phases timed and its exposed communication measured.

[Note: exposed communication] It is the step's time minus the time of the same step without synchronisation. The second
is measured by a *probe*: every few steps all workers run, at the same time, complete steps (forward, backward, update,
zeroing) of a *twin*: a copy of the model with its own plain AdamW that no team has touched, on the batch at hand. The
twin's results are thrown away, so training is bit for bit what it is without probes. The first step of a probe, and the
first training step after one, find the other model's data in the caches; neither counts. A probe is compared with the
median of the training steps around it; the result is the median over probes, averaged over workers. So whatever
synchronisation costs counts as exposed: waiting, copying, processor time of memory devices, zeroing gradients instead
of dropping them, waiting for a slower worker.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from experiments.gpt.corpus import Batch, Corpus, rows_of
from experiments.gpt.model import Gpt, GptShape, num_parameters
from experiments.gpt.rows import Probe, StepRecord, Summary, exposed_s, median_step_s
from experiments.gpt.teams import Team

TWIN_STEPS = 2
"""Steps of one probe; the last one counts."""

FEWEST_PROBES = 3
"""A report says nothing of exposed communication before so many probes: a single one may say anything."""

REPORT_EVERY = 5
"""Losses are averaged over workers once in so many steps, outside of the timed steps."""


DEFAULT_SHAPE = GptShape()


@dataclass(frozen=True, kw_only=True)
class Training:
    """What to train, on what, and for how long."""

    mode: str
    steps: int = 80
    global_rows: int = 16
    shape: GptShape = DEFAULT_SHAPE
    learning_rate: float = 1e-3
    seed: int = 1
    probe_every: int | None = 5
    """Measure the exposed communication once in so many steps; None: never."""
    warmup_steps: int = 10
    on_meta: bool = False
    """Whether the model is made on the meta device, and filled unit by unit by a team that can."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a run has at least 1 step, got {self.steps}")
        if self.global_rows < 1:
            raise ValueError(f"a global batch has at least 1 row, got {self.global_rows}")


@dataclass(frozen=True)
class Report:
    """How a run stands after `step` steps."""

    step: int
    loss: float
    step_s: float
    exposed_s: float | None


def learning_rate_at(step: int, training: Training) -> float:
    """A linear rise over the warm-up, then half a cosine down to a tenth."""
    if step < training.warmup_steps:
        return training.learning_rate * (step + 1) / training.warmup_steps
    done = (step - training.warmup_steps) / max(1, training.steps - training.warmup_steps)
    return training.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


class Trainer:
    """One worker's model, optimizer and records; `run` trains to the end."""

    def __init__(
        self,
        training: Training,
        team: Team,
        corpus: Corpus,
        clock: Callable[[], float] = time.perf_counter,  # noqa: TID251 (coarse's own is not there in mode single)
    ) -> None:
        rows_of(team.rank, team.size, training.global_rows)  # an impossible cut is refused before anything is built
        torch.manual_seed(training.seed)
        self._training, self._team, self._corpus, self._clock = training, team, corpus, clock
        with torch.device("meta" if training.on_meta else "cpu"):
            model = Gpt(training.shape)
        probes = training.probe_every is not None and team.synchronises
        self._twin = copy.deepcopy(model) if probes else None
        self._twin_optimizer = _adamw(self._twin) if self._twin else None
        self._bare_model = model
        self.num_parameters = num_parameters(model)
        self._model, self._optimizer = team.join(model, _adamw(model))
        self._probes: list[Probe] = []
        self._records: list[StepRecord] = []

    def run(self, on_report: Callable[[Report], None]) -> tuple[Summary, list[StepRecord]]:
        """Train, report now and then, and return the summary with one record per step."""
        bytes_before, loop = self._team.bytes_moved(), self._team.loop()
        self._take_up(loop.values)
        if self._team.first_step >= self._training.steps and not self._records:
            raise ValueError(f"the run that goes on has made {self._team.first_step} steps; ask for more by --steps")
        settled_at = min(self._training.warmup_steps, self._training.steps // 2)
        after_probe = bool(self._probes) and self._probes[-1].step == self._records[-1].step
        for step in loop.steps(self._training.steps):
            batch = self._batch(step)
            record = self._step(step, batch, settled=step >= settled_at and not after_probe)
            self._records.append(record)
            after_probe = step >= settled_at and self._probe_is_due(step)
            if after_probe:
                self._probe(step, batch)
            if (step + 1) % REPORT_EVERY == 0 or step + 1 == self._training.steps:
                on_report(self._report())
            loop.values["steps"] = np.array([[*vars(record).values()] for record in self._records])
            loop.values["probes"] = np.array([[*vars(probe).values()] for probe in self._probes])
            loop.commit()
        return self._summary(bytes_before), self._records

    def _take_up(self, values: Mapping[str, np.ndarray]) -> None:
        """Have the records of a run that goes on."""
        for row in values.get("steps", ()):
            step, *seconds, settled = row.tolist()
            names = [field.name for field in fields(StepRecord)][1:-1]
            self._records.append(
                StepRecord(step=int(step), settled=bool(settled), **dict(zip(names, seconds, strict=True)))
            )
        self._probes += [Probe(int(step), seconds) for step, seconds in values.get("probes", ())]

    def digest(self) -> str:
        """The SHA-256 of the parameters; of sharded ones all workers ask together."""
        found = hashlib.sha256()
        with self._team.whole():
            for parameter in self._bare_model.parameters():
                whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
                found.update(whole.detach().cpu().numpy().tobytes())
        return found.hexdigest()

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        """This worker's rows of the step's global batch."""
        training, team = self._training, self._team
        return _tensors(
            self._corpus.batch(
                step,
                seed=training.seed,
                global_rows=training.global_rows,
                context=training.shape.context,
                worker=team.rank,
                workers=team.size,
            )
        )

    def _step(self, step: int, batch: tuple[Tensor, Tensor], *, settled: bool) -> StepRecord:
        """One training step, its phases timed."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate_at(step, self._training)
        begin_s = self._clock()
        loss = self._model(*batch)
        forward_end_s = self._clock()
        loss.backward()
        backward_end_s = self._clock()
        self._team.synchronize()
        wait_end_s = self._clock()
        self._team.update()
        self._optimizer.zero_grad()
        end_s = self._clock()
        return StepRecord(
            step=step,
            loss=loss.item(),
            begin_s=begin_s,
            forward_s=forward_end_s - begin_s,
            backward_s=backward_end_s - forward_end_s,
            wait_s=wait_end_s - backward_end_s,
            optimizer_s=end_s - wait_end_s,
            settled=settled,
        )

    def _probe_is_due(self, step: int) -> bool:
        every = self._training.probe_every
        return self._twin is not None and every is not None and step % every == every - 1

    def _probe(self, step: int, batch: tuple[Tensor, Tensor]) -> None:
        """Time the twin's steps; see [Note: exposed communication]."""
        assert self._twin is not None
        assert self._twin_optimizer is not None
        twin_s = 0.0
        for _ in range(TWIN_STEPS):
            begin_s = self._clock()
            self._twin(*batch).backward()
            self._twin_optimizer.step()
            self._twin_optimizer.zero_grad()
            twin_s = self._clock() - begin_s
        self._probes.append(Probe(step, twin_s))

    def _exposed_s(self) -> float | None:
        """What this worker's probes say so far."""
        return exposed_s(self._records, self._probes, self._training.probe_every or 0)

    def _report(self) -> Report:
        """Average the losses that are not averaged yet, and say how the run stands."""
        num_new = (len(self._records) - 1) % REPORT_EVERY + 1
        losses = torch.zeros(REPORT_EVERY, dtype=torch.float64)  # always the same length: the name keeps its shape
        losses[:num_new] = torch.tensor([record.loss for record in self._records[-num_new:]], dtype=torch.float64)
        means = self._team.mean(losses, "experiment.losses").tolist()[:num_new]
        for index, loss in enumerate(means, start=len(self._records) - num_new + 1):
            if not math.isfinite(loss):
                raise FloatingPointError(f"step {index}: the loss is {loss}, no number; lower Training.learning_rate")
        self._records[-num_new:] = [
            replace(record, loss=loss) for record, loss in zip(self._records[-num_new:], means, strict=True)
        ]
        return Report(
            step=self._records[-1].step + 1,
            loss=self._records[-1].loss,
            step_s=median_step_s(self._records),
            exposed_s=self._exposed_s() if len(self._probes) >= FEWEST_PROBES else None,
        )

    def _summary(self, bytes_before: int | None) -> Summary:
        """The run in one line, averaged over workers."""
        bytes_after = self._team.bytes_moved()
        exposed = self._exposed_s()
        mine = [
            median_step_s(self._records),
            math.nan if exposed is None else exposed,
            math.nan if bytes_before is None or bytes_after is None else float(bytes_after - bytes_before),
            self._validation_loss(),
        ]
        step_s, mean_exposed_s, num_bytes, validation_loss = self._team.mean(
            torch.tensor(mine, dtype=torch.float64), "experiment.summary"
        ).tolist()
        per_step = num_bytes * self._team.size / self._training.steps
        return Summary(
            mode=self._training.mode,
            workers=self._team.size,
            steps=self._training.steps,
            first_loss=self._records[0].loss,
            last_loss=self._records[-1].loss,
            validation_loss=validation_loss,
            step_s=step_s,
            exposed_s=None if math.isnan(mean_exposed_s) else mean_exposed_s,
            bytes_per_step=None if math.isnan(per_step) else round(per_step),
        )

    @torch.no_grad()
    def _validation_loss(self) -> float:
        """The loss on text that was never trained on."""
        batch = self._corpus.validation_batch(rows=32, context=self._training.shape.context)
        return float(self._bare_model(*_tensors(batch)))


def _adamw(model: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.1)


def _tensors(batch: Batch) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)
