"""A fine-tuning run from files to scores, in one process or as one worker of many."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from experiments.finetuning import checkpoint
from experiments.finetuning.evaluation import evaluate
from experiments.finetuning.features import Features, features_of
from experiments.finetuning.models import num_parameters, question_answering_model
from experiments.finetuning.report import Summary, speed_of
from experiments.finetuning.squad import Question
from experiments.finetuning.teams import Team
from experiments.finetuning.tokenizer import Tokenizer, train_tokenizer
from experiments.finetuning.training import FineTuning, StepRecord, Trainer


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a run's state comes from and goes to; None: nowhere."""

    load: Path | None = None
    save: Path | None = None

    def check(self, mode: str) -> None:
        """ValueError or FileNotFoundError if a run in `mode` could not read or write there."""
        for path in filter(None, (self.load, self.save)):
            checkpoint.check_path(path, mode)
        if self.load is not None and not self.load.exists():
            raise FileNotFoundError(f"{self.load} does not exist; give a checkpoint that --save has written")


NOWHERE = Places()


class Run:
    """One worker's part: `train`, then `summary`; the results are the same on all workers."""

    def __init__(
        self,
        settings: FineTuning,
        team: Team,
        mode: str,
        questions: Sequence[Question],
        clock: Callable[[], float],
        places: Places = NOWHERE,
    ) -> None:
        self._settings, self._team, self._mode, self._places = settings, team, mode, places
        texts = [text for question in questions for text in (question.text, question.context)]
        self._tokenizer = train_tokenizer(dict.fromkeys(texts), settings.vocabulary)
        features = features_of(questions, self._tokenizer, settings.row)
        model = self._model()
        self._num_parameters = num_parameters(model)
        self._num_trainable = num_parameters(model, trainable_only=True)
        team.require_same(fingerprints(self._tokenizer, features, model), "tokenizer, questions or first weights")
        self._trainer = Trainer(settings, team, model, features, clock)
        if places.load is not None and places.load.suffix != checkpoint.SUFFIX:
            checkpoint.load_shards(places.load, self._trainer.model, self._trainer.optimizer)

    @property
    def records(self) -> list[StepRecord]:
        """The steps so far."""
        return self._trainer.records

    def train(self, on_step: Callable[[StepRecord], None]) -> None:
        """Train to the end, and save where that was asked for."""
        self._trainer.run(on_step)
        if self._places.save is not None:
            checkpoint.save(self._places.save, self._trainer.model, self._trainer.optimizer, self._team, self._mode)

    def summary(self, asked: Sequence[Question]) -> Summary:
        """The run in numbers, with the scores on the questions `asked`."""
        settings, team = self._settings, self._team
        scores = evaluate(self._trainer.model, settings.family, asked, self._tokenizer, settings.row, team)
        step_s, tokens_per_s = speed_of(self.records)
        return Summary(
            mode=self._mode,
            workers=team.size,
            num_parameters=self._num_parameters,
            num_trainable=self._num_trainable,
            first_loss=self.records[0].loss,
            last_loss=self.records[-1].loss,
            step_s=step_s,
            tokens_per_s=tokens_per_s,
            first_bytes_between_nodes=self.records[0].bytes_between_nodes,
            last_bytes_between_nodes=self.records[-1].bytes_between_nodes,
            scores=scores,
        )

    def _model(self) -> nn.Module:
        """The model with its first weights, which follow from the seed or from a file."""
        settings = self._settings
        torch.manual_seed(settings.seed)
        model = question_answering_model(
            settings.family,
            settings.size,
            num_tokens=self._tokenizer.num_tokens,
            length=settings.row.length,
            lora=settings.lora,
        )
        if self._places.load is not None and self._places.load.suffix == checkpoint.SUFFIX:
            checkpoint.load_weights(self._places.load, model)
        return model


def fingerprints(tokenizer: Tokenizer, features: Features, model: nn.Module) -> list[int]:
    """What all workers must have in common, as integers of 32 bits."""
    weights = 0
    for parameter in model.parameters():
        weights = zlib.crc32(parameter.detach().contiguous().numpy(), weights)
    rows = zlib.crc32(features.starts, zlib.crc32(features.token_ids))
    return [zlib.crc32(tokenizer.to_json().encode()), rows, weights]
