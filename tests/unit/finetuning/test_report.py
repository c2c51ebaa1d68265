"""What a run says of itself."""

from dataclasses import replace

import pytest

from experiments.finetuning.report import Summary, speed_of, step_line, summary_lines
from experiments.finetuning.scores import Scores
from experiments.finetuning.training import StepRecord

SUMMARY = Summary(
    mode="fcdp",
    workers=4,
    num_parameters=1_000_000,
    num_trainable=5_000,
    first_loss=5.0,
    last_loss=2.5,
    step_s=0.5,
    tokens_per_s=4_000.0,
    first_bytes_between_nodes={"forward gather": 90_000, "backward gather": 0, "agreements": 24},
    last_bytes_between_nodes={"forward gather": 3_000, "backward gather": 0, "agreements": 24},
    scores=Scores(57, 12.5, 25.0),
)


def record(step, step_s, num_tokens):
    return StepRecord(
        step=step, loss=4.0, gradient_norm=1.0, step_s=step_s, num_tokens=num_tokens, bytes_between_nodes={}
    )


def test_a_step_says_its_loss_and_the_tokens_of_all_workers_per_second():
    assert step_line(record(2, 0.5, 600), 10) == "step 3/10  loss 4.000000  1,200 tokens/s"


def test_the_first_steps_do_not_count_for_the_speed():
    slow, quick = [record(step, 9.0, 1) for step in range(3)], [record(3, 1.0, 30), record(4, 3.0, 50)]
    assert speed_of(slow + quick) == pytest.approx((2.0, 20.0))
    assert speed_of(slow) == pytest.approx((9.0, 1 / 9))


def test_a_summary_counts_the_bytes_between_nodes_by_what_they_were_for():
    lines = summary_lines(SUMMARY, "questions.json")
    assert lines[-2:] == [
        "90,024 bytes between nodes in the first step (counted): forward gather 90,000, agreements 24",
        "3,024 bytes between nodes in the last step (counted): forward gather 3,000, agreements 24",
    ]
    assert lines[2] == "exact match 12.5 %, F1 25.0 % on 57 questions of questions.json"


def test_a_run_on_one_node_says_nothing_of_other_nodes():
    nothing = {"forward gather": 0}
    alone = replace(SUMMARY, first_bytes_between_nodes=nothing, last_bytes_between_nodes=nothing)
    assert len(summary_lines(alone, "questions.json")) == 3
