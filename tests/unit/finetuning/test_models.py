"""The three families learn to answer, with and without LoRA, in one process."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from experiments.finetune import QUESTIONS as SHIPPED
from experiments.finetuning import checkpoint
from experiments.finetuning.checkpoint import CheckpointFileError
from experiments.finetuning.evaluation import evaluate
from experiments.finetuning.features import RowShape, features_of
from experiments.finetuning.models import (
    FAMILIES,
    LORA_TARGETS,
    SIZES,
    Lora,
    inputs_of,
    labels_of,
    num_parameters,
    question_answering_model,
)
from experiments.finetuning.run import Places, Run
from experiments.finetuning.scores import Scores
from experiments.finetuning.squad import read_squad
from experiments.finetuning.teams import AloneTeam
from experiments.finetuning.tokenizer import train_tokenizer
from experiments.finetuning.training import FineTuning, Trainer, learning_rate_at

QUESTIONS = read_squad(SHIPPED)[:12]
ROW = RowShape(length=96, doc_stride=32)
LORA = Lora(rank=8)


class CountingClock:
    """Each look at it takes a second."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 1.0
        return self.now_s


class PartTeam(AloneTeam):
    """One worker of two that are never joined: its means are its own halves."""

    def __init__(self, rank):
        self.rank = rank
        self.size = 2


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([text for q in QUESTIONS for text in (q.text, q.context)], 500)


@pytest.fixture(scope="module")
def rows(tokenizer):
    return features_of(QUESTIONS, tokenizer, ROW)


def model_of(family, tokenizer, lora=None):
    torch.manual_seed(0)
    return question_answering_model(family, "tiny", num_tokens=tokenizer.num_tokens, length=ROW.length, lora=lora)


def losses(steps=8, **changes):
    settings = FineTuning(**{"row": ROW, "vocabulary": 500, "steps": steps, "batch": 8, **changes})
    run = Run(settings, AloneTeam(), "single", QUESTIONS, CountingClock())
    run.train(lambda record: None)
    return [record.loss for record in run.records]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lora", [None, LORA], ids=["all", "lora"])
def test_the_loss_falls(family, lora):
    found = losses(steps=20, family=family, lora=lora, learning_rate=5e-3)
    assert np.mean(found[-4:]) < 0.95 * np.mean(found[:4])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_loss_is_that_of_guessing(family):
    assert losses(steps=1, family=family)[0] == pytest.approx(math.log(ROW.length), rel=0.15)


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_trains_adapters_of_all_four_projections_and_the_head_alone(family, tokenizer):
    model = model_of(family, tokenizer, LORA)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or "qa_outputs" in name for name in trained)
    num_layers = SIZES["tiny"].layers
    for target in LORA_TARGETS[family]:
        assert sum(f".{target}.lora_A" in name for name in trained) == num_layers
    width, num_inputs_and_outputs = SIZES["tiny"].width, {"gpt2": 1 + 3 + 1 + 1}.get(family, 8)
    adapters = num_layers * 8 * width * num_inputs_and_outputs
    assert num_parameters(model, trainable_only=True) == adapters + 2 * width + 2


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_begins_as_the_model_without_it(family, tokenizer, rows):
    with torch.no_grad():
        bare, adapted = (
            model_of(family, tokenizer, lora)(**inputs_of(family, rows.take([0, 1]))).start_logits
            for lora in (None, LORA)
        )
    assert adapted.shape == (2, ROW.length)
    assert torch.isfinite(bare).all()
    head = model_of(family, tokenizer).qa_outputs.weight
    assert torch.equal(head, model_of(family, tokenizer, LORA).get_submodule("base_model.model.qa_outputs").weight)
    assert torch.allclose(bare, adapted, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_does_not_change_what_stands_before_it(family, tokenizer, rows):
    model = model_of(family, tokenizer).eval()
    longest = rows.take([0])
    filled = int(longest.mask.sum())
    shorter = {name: tensor[:, :filled] for name, tensor in inputs_of(family, longest).items()}
    with torch.no_grad():
        padded = model(**inputs_of(family, longest)).start_logits[:, :filled]
        assert torch.allclose(padded, model(**shorter).start_logits, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_the_mean_cross_entropy_of_both_ends(family, tokenizer, rows):
    model = model_of(family, tokenizer).eval()
    few = rows.take([0, 3, 5])
    with torch.no_grad():
        output = model(**inputs_of(family, few), **labels_of(few))
    by_hand = 0.0
    for logits, places in ((output.start_logits, few.starts), (output.end_logits, few.ends)):
        logs = torch.log_softmax(logits, dim=1)
        by_hand -= sum(float(logs[row, place]) for row, place in enumerate(places)) / 6
    assert float(output.loss) == pytest.approx(by_hand, rel=1e-5)


def test_accumulating_over_passes_does_not_change_the_training():
    assert losses(accumulate=4) == pytest.approx(losses(), rel=1e-5)


def test_the_seed_alone_decides_the_run():
    assert losses(steps=3) == losses(steps=3)
    assert losses(steps=3) != losses(steps=3, seed=2)


def test_gradients_are_scaled_to_the_largest_norm(tokenizer, rows):
    model = model_of("gpt2", tokenizer)
    model(**inputs_of("gpt2", rows), **labels_of(rows)).loss.backward()
    before = math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters()))
    team = AloneTeam()
    assert team.clip(model, before / 3) == pytest.approx(before, rel=1e-5)
    assert team.clip(model, before) == pytest.approx(before / 3, rel=1e-4)


def test_a_loss_that_is_no_number_ends_the_run(tokenizer, rows):
    model = model_of("opt", tokenizer)
    with torch.no_grad():
        model.qa_outputs.bias.fill_(math.nan)
    settings = FineTuning(family="opt", row=ROW, batch=4)
    with pytest.raises(FloatingPointError, match="step 0: the loss is nan"):
        Trainer(settings, AloneTeam(), model, rows, CountingClock()).run(lambda record: None)


def test_workers_share_the_questions_of_an_evaluation(tokenizer):
    model = model_of("bert", tokenizer)
    whole = evaluate(model, "bert", QUESTIONS, tokenizer, ROW, AloneTeam())
    parts = [evaluate(model, "bert", QUESTIONS, tokenizer, ROW, PartTeam(rank)) for rank in range(2)]
    assert whole == Scores(
        num_questions=12,
        exact_match=pytest.approx(sum(part.exact_match for part in parts) / 2),
        f1=pytest.approx(sum(part.f1 for part in parts) / 2),
    )
    assert model.training


def test_a_worker_without_a_question_keeps_the_others_company(tokenizer):
    model = model_of("gpt2", tokenizer)
    assert evaluate(model, "gpt2", QUESTIONS[:1], tokenizer, ROW, PartTeam(1)) == Scores(1, 0.0, 0.0)


def test_weights_written_and_read_are_the_same(tmp_path, tokenizer):
    path = tmp_path / "deep" / "model.safetensors"
    written, read = (model_of("gpt2", tokenizer, lora) for lora in (LORA, LORA))
    with torch.no_grad():
        for parameter in written.parameters():
            parameter.add_(1.0)
    checkpoint.save(path, written, torch.optim.SGD(written.parameters()), AloneTeam(), "single")
    checkpoint.load_weights(path, read)
    assert all(torch.equal(a, b) for a, b in zip(written.parameters(), read.parameters(), strict=True))
    assert [file.name for file in path.parent.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("num_bytes", [0, 7, 100, -1])
def test_a_torn_file_of_weights_is_refused(tmp_path, tokenizer, num_bytes):
    path, model = tmp_path / "model.safetensors", model_of("gpt2", tokenizer)
    checkpoint.save(path, model, torch.optim.SGD(model.parameters()), AloneTeam(), "single")
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(CheckpointFileError, match=r"model.safetensors is no whole file of safetensors"):
        checkpoint.load_weights(path, model)


def test_weights_of_another_model_are_refused(tmp_path, tokenizer):
    path, model = tmp_path / "model.safetensors", model_of("gpt2", tokenizer)
    checkpoint.save(path, model, torch.optim.SGD(model.parameters()), AloneTeam(), "single")
    with pytest.raises(CheckpointFileError, match=r"\d+ weights differ, of them .* another --family"):
        checkpoint.load_weights(path, model_of("opt", tokenizer))


def test_a_run_continues_from_the_weights_of_another(tmp_path):
    path = tmp_path / "model.safetensors"
    settings = FineTuning(row=ROW, vocabulary=500, steps=12, batch=8)
    first = Run(settings, AloneTeam(), "single", QUESTIONS, CountingClock(), Places(save=path))
    first.train(lambda record: None)
    continued = Run(settings, AloneTeam(), "single", QUESTIONS, CountingClock(), Places(load=path))
    continued.train(lambda record: None)
    assert continued.records[0].loss < first.records[0].loss - 0.1
    summary = first.summary(QUESTIONS)
    assert (summary.first_loss, summary.last_loss) == (first.records[0].loss, first.records[-1].loss)
    assert (summary.step_s, summary.scores.num_questions) == (1.0, 12)
    assert summary.last_bytes_between_nodes == {}


def test_a_folder_is_for_the_sharded_modes_alone(tmp_path):
    with pytest.raises(ValueError, match=r"in mode coarse name a file that ends in \.safetensors"):
        Places(save=tmp_path / "state").check("coarse")
    Places(save=tmp_path / "state").check("fcdp")
    with pytest.raises(FileNotFoundError, match="--save has written"):
        Places(load=tmp_path / "state").check("fcdp")


def test_the_learning_rate_rises_over_a_tenth_and_falls_to_nearly_nothing():
    settings = FineTuning(steps=100, learning_rate=1.0)
    rates = [learning_rate_at(step, settings) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert all(a > b for a, b in pairwise(rates[9:]))
    assert 0.0 < rates[-1] < 0.02
    assert learning_rate_at(0, FineTuning(steps=1, learning_rate=1.0)) == 1.0


@pytest.mark.parametrize(
    ("family", "size", "message"), [("t5", "tiny", "one of gpt2, opt, bert"), ("gpt2", "huge", "one of tiny, small")]
)
def test_a_model_that_is_not_known_is_refused(family, size, message):
    with pytest.raises(ValueError, match=message):
        question_answering_model(family, size, num_tokens=10, length=8)


@pytest.mark.parametrize("field", ["steps", "learning_rate", "clip"])
def test_settings_that_cannot_train_are_refused(field):
    with pytest.raises(ValueError, match=r"1 step|above 0"):
        FineTuning(**{field: 0})


@pytest.mark.parametrize("field", ["rank", "alpha"])
def test_adapters_of_nothing_are_refused(field):
    with pytest.raises(ValueError, match=f"Lora.{field} must be at least 1"):
        Lora(**{field: 0})
