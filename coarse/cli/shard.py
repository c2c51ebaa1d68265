"""`coarse shard`: the times of sharded GPT training on a stated machine, by mode or by plan."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coarse.cli.fields import Asked, with_options
from coarse.cli.options import MACHINE_HELP, OWN_MODEL_HELP, require_seed, stated_keys
from coarse.cli.own_model.description import OwnModel
from coarse.cli.own_model.source import is_own, own_model
from coarse.cli.progress import shown_tasks
from coarse.cli.report.plans import PLAN_HEAD, Plans, plan_cells, plan_sentences, plans_document
from coarse.cli.report.sharded import ShardedRow, document, predicted, table_of
from coarse.cli.wrong_input import wrong_input_ends_with_2
from coarse.errors import ConfigError
from coarse.hardware.machine import Machine
from coarse.hardware.presets import machine_named
from coarse.simulation.sharded.question import ShardedQuestion
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.simulation.sharded.search import search_plans
from coarse.strategy.named import options_from, require_classes
from coarse.strategy.named_sharding import sharding_named
from coarse.strategy.sharding import SIMULATED

_SEARCHED = ("modes", "factor", "blocks", "keep_gathered", "in_flight", "backward_prefetch", "quantised", "tau")
"""Options that a search chooses itself, or whose modes it leaves out."""
_SHOWN = 8
"""Number of a search's fastest plans that are shown."""
app = typer.Typer(add_completion=False)


@app.command()
@with_options(
    ShardedQuestion,
    optional=("sequence", "seed"),
    helps={
        "machine": MACHINE_HELP,
        "model": f"gpt-10b, -15b, -20b, -25b, -30b, LAYERSxHIDDENxHEADS, {OWN_MODEL_HELP}.",
    },
)
def shard(
    context: typer.Context,
    asked: Asked,
    search: Annotated[
        bool,
        typer.Option(
            "--search", help="Find the fastest plan of FSDP that fits: units, F, what is freed and prefetched, batch."
        ),
    ] = False,
    out: Annotated[Path, typer.Option(help="The file of rows.")] = Path("results/shard.json"),
) -> None:
    """Simulate sharded training on a machine: samples/s, bytes between nodes, memory, by mode or by plan."""
    with wrong_input_ends_with_2():
        require_seed(has_seed="seed" in asked, has_jitter=bool(asked.get("jitter")))
        question = ShardedQuestion(**asked)
        machine = machine_named(question.machine)
        machine = replace(machine, num_nodes=max(machine.num_nodes, question.num_nodes))
        own = own_model(question.model, question.sequence) if is_own(question.model) else None
        if own and own.times:
            raise ConfigError(
                f"--model {question.model} is a trace, whose times are those of one worker's whole layers, and coarse "
                "shard computes units by their FLOPs; name a config.json or a function, or ask coarse predict",
                key="model",
            )
        scenario = question.scenario(machine, own.model if own else None)
        page = _Page(question, scenario, own, out)
        if search:
            _require_unstated(context)
            page.show_plans()
        else:
            page.show_modes(_rows(question, machine, own))


def _require_unstated(context: typer.Context) -> None:
    """Raise ConfigError if an option is stated that a search chooses."""
    for key in _SEARCHED:
        if key in stated_keys(context):
            flag = f"--{key.replace('_', '-')}"
            raise ConfigError(f"{flag} means nothing with --search, which tries plans of FSDP; leave it out", key=key)


def _rows(question: ShardedQuestion, machine: Machine, own: OwnModel | None) -> Iterator[ShardedRow]:
    names = [name.strip() for name in question.modes.split(",")]
    require_classes(question.options, names)
    chosen = [
        sharding_named(name, SIMULATED, options=options_from(question.options, name), asked="--modes")
        for name in names
    ]
    for mode in dict.fromkeys(chosen):
        scenario = question.scenario(machine, own.model if own else None, mode)
        yield predicted(scenario, threshold=question.tau, at_largest_batch=not question.batch)


class _Page:
    """Output of the command: tables, sentences, and the file that it writes."""

    def __init__(self, question: ShardedQuestion, asked: ShardedScenario, own: OwnModel | None, out: Path) -> None:
        self._question, self._asked, self._out = question, asked, out
        self._notes = own.notes if own else ()
        self._console = Console()
        what = f"LoRA of rank {asked.lora_rank}" if asked.lora_rank else "full fine-tuning"
        where = f"{asked.num_nodes} x {asked.gpus_per_node} GPUs of {asked.machine.name}"
        self._title = f"{asked.model_name}, {what}, {where}, simulated"

    def show_modes(self, found: Iterator[ShardedRow]) -> None:
        """Show a row per mode, and write them."""
        rows = list(found)
        self._show(*table_of(rows), [row.note for row in rows if row.note])
        self._write(document(rows, self._inputs()))

    def show_plans(self) -> None:
        """Search plans, show a row for each of the fastest ones, and write all."""
        with shown_tasks() as tasks:
            found = search_plans(
                self._asked, at_largest_batch=not self._question.batch, on_progress=tasks.begin("plans")
            )
        plans = Plans(searched=found, asked=self._asked)
        cells = [plan_cells(plans, each) for each in found.found[:_SHOWN]]
        self._show(PLAN_HEAD, cells, plan_sentences(plans))
        self._write(plans_document(plans, self._inputs()))

    def _show(self, head: Sequence[str], rows: Sequence[Sequence[str]], sentences: Sequence[str]) -> None:
        table = Table(title=self._title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=0)
        for number, name in enumerate(head):
            table.add_column(name, justify="right" if number else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)
        for sentence in (*sentences, *self._notes):
            self._console.print(sentence, highlight=False, markup=False)
        said = f"Compute: {self._pace}. GB are those that leave one node in an iteration."
        self._console.print(said, highlight=False)

    @property
    def _pace(self) -> str:
        asked, gpu = self._asked, self._asked.machine.accelerator
        own = asked.own_model
        sample = f"a sample is a {own.sample}" if own else f"{asked.sequence} tokens a sample"
        microbatches = f", {asked.num_microbatches} microbatches an iteration" if asked.num_microbatches > 1 else ""
        return (
            f"{asked.peak_share:.0%} of {gpu.name}'s {gpu.fp16_flops_per_s / 1e12:.4g} TFLOP/s in fp16 (an assumption: "
            f"--peak-share), {sample}{microbatches}, collective {asked.policy.collective}, schedule {asked.schedule}"
        )

    def _inputs(self) -> dict[str, str]:
        inputs = {"command": shlex.join(["coarse", *sys.argv[1:]]), "title": self._title, "compute": self._pace}
        return {**inputs, "model": " ".join(self._notes)} if self._notes else inputs

    def _write(self, content: dict[str, Any]) -> None:
        self._out.parent.mkdir(parents=True, exist_ok=True)
        self._out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        self._console.print(f"wrote {self._out.as_posix()}", highlight=False, markup=False, soft_wrap=True)
