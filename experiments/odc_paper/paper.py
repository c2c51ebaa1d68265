"""ODC (ICLR 2026), of which a summary was at hand; see docs/odc.md."""

from dataclasses import replace

from experiments.odc_paper import balance
from experiments.odc_paper.inputs import CENTRAL, DECLARED, under
from experiments.validation.claims import ClaimRow
from experiments.validation.interval_study import Interval, Study, Values, with_values
from experiments.validation.paper import Paper, Tables, figure, missing


def rows_under(values: Values) -> list[ClaimRow]:
    """All rows."""
    chosen = with_values(CENTRAL, {field: value for field, value in values.items() if field != "sigma"})
    with under(replace(chosen, sigmas=(values["sigma"],)) if "sigma" in values else chosen):
        return balance.rows()


def tables() -> Tables:
    """Gains by size."""
    what = "The largest gain of mode odc over FSDP with LB-Micro, over data and sigmas."
    yield "Fine-tuning by samples of a worker", what, balance.gains_table()
    what = "The largest gain of mode odc over FSDP as verl divides samples, over sigmas."
    yield "Rollouts by samples of a worker", what, balance.rl_table()


STUDY = Study(
    title="ODC",
    what="All rows; `sigma` alone stands for a single spread of lengths, where the declared rows are over three.",
    intervals=(
        Interval(field="sigma", declared="lengths", low=0.5, central=1.0, high=1.5,
                 why="half and one and a half times"),
        Interval(field="rl_mean_tokens", declared="rollouts", low=4_000, central=8_000, high=12_000,
                 why="half and one and a half times; no length is stated"),
        Interval(field="least_rl_samples", declared="rollouts", low=2, central=2, high=8, is_choice=True,
                 why="verl's minibatches have some samples of each worker; how many is not stated"),
    ),
    rows_under=rows_under,
    num_samples=6,
    headlines=("fine-tuning: odc over fsdp", "fine-tuning: idle share", "rollouts (GRPO on verl)"),
)  # fmt: skip

ODC = Paper(
    name="odc",
    title="ODC (ICLR 2026)",
    explained="odc.md",
    figures=(
        figure("main results, Table 6, findings", "balance, idle shares and rollouts", balance),
        missing("11", "point to point beside collectives", "measured: make bench-odc (odc.md)"),
        missing("others", "models of 1.5B, 14B and 32B", "their costs are not published"),
    ),
    declared=DECLARED,
    tables=tables,
    studies=(STUDY,),
)
