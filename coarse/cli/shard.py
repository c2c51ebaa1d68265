"""`coarse shard`: what sharded training of a GPT would take on a machine that is stated, mode by mode."""

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coarse.cli.options import MACHINE_HELP, OWN_MODEL_HELP, one_of
from coarse.cli.own_model.source import is_own, own_model
from coarse.cli.report.sharded import HEAD, ShardedRow, document, predicted
from coarse.cli.wrong_input import wrong_input_ends_with_2
from coarse.collectives.shape import Collective
from coarse.errors import ConfigError
from coarse.hardware.presets import machine_named
from coarse.simulation.sharded.modes import Schedule, ShardedPolicy
from coarse.simulation.sharded.scenario import CACHE_SHARE, PEAK_SHARE, ShardedScenario
from coarse.strategy.named import options_from, require_classes
from coarse.strategy.named_sharding import sharding_named
from coarse.strategy.sharding import SIMULATED, Sharding, ZeroPP

_GPT_SEQUENCE = 256
_ALL_MODES = ",".join(SIMULATED)
app = typer.Typer(add_completion=False)


@app.command()
def shard(
    machine: Annotated[str, typer.Option(help=MACHINE_HELP)] = "fcdp-a40-10gbe",
    model: Annotated[
        str, typer.Option(help=f"gpt-10b, -15b, -20b, -25b, -30b, LAYERSxHIDDENxHEADS, {OWN_MODEL_HELP}.")
    ] = "gpt-10b",
    batch: Annotated[int, typer.Option(help="Samples per GPU; 0: each mode's largest power of two that fits.")] = 8,
    nodes: Annotated[int, typer.Option(help="Nodes of the cluster.")] = 2,
    gpus: Annotated[int, typer.Option(help="GPUs per node; 0: all.")] = 0,
    modes: Annotated[str, typer.Option(help=f"Of {_ALL_MODES}, MODULE:CLASS or FILE.py:CLASS.")] = _ALL_MODES,
    collective: Annotated[str, typer.Option(help="hierarchical, as live, or ring.")] = Collective.HIERARCHICAL.value,
    schedule: Annotated[
        str, typer.Option(help="fsdp2, as live, or overlapped: reductions beside compute, and no root unit that stays.")
    ] = Schedule.FSDP2.value,
    lora_rank: Annotated[int, typer.Option(help="Of adapters at q, k, v and o; 0: full fine-tuning.")] = 0,
    sequence: Annotated[int | None, typer.Option(help="Tokens of a sample; of GPTs 256 by default.")] = None,
    peak_share: Annotated[float, typer.Option(help="Of the GPU's fp16 peak that it computes at.")] = PEAK_SHARE,
    recompute: Annotated[bool, typer.Option(help="Whether backward computes forward again.")] = False,
    in_flight: Annotated[int, typer.Option(help="Units that may be gathered at once.")] = 2,
    quantised: Annotated[bool, typer.Option(help="Whether zeropp gathers int8 in forward.")] = False,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="An option of a class of yours: NAME=VALUE or CLASS.NAME=VALUE.")
    ] = None,
    tau: Annotated[float, typer.Option(help="Share of GPU memory below which fcdp keeps shards there.")] = CACHE_SHARE,
    out: Annotated[Path, typer.Option(help="The file of rows.")] = Path("results/shard.json"),
) -> None:
    """Simulate sharded training of a GPT on a machine: samples/s, bytes between nodes, memory, by mode."""
    with wrong_input_ends_with_2():
        where = machine_named(machine)
        where = replace(where, num_nodes=max(where.num_nodes, nodes))
        names = [name.strip() for name in modes.split(",")]
        require_classes(options or (), names)
        chosen = [
            sharding_named(name, SIMULATED, options=options_from(options or (), name), asked="--modes")
            for name in names
        ]
        policy = ShardedPolicy(sharding=chosen[0], collective=one_of("collective", collective, Collective))
        own = own_model(model, sequence) if is_own(model) else None
        if own and own.times:
            raise ConfigError(
                f"--model {model} is a trace, whose times are those of one worker's whole layers, and coarse shard "
                "computes units by their FLOPs; name a config.json or a function, or ask coarse predict",
                key="model",
            )
        asked = ShardedScenario(
            machine=where, model_name=own.model.name if own else model, own_model=own.model if own else None,
            policy=policy, batch=batch or 1, num_nodes=nodes, gpus_per_node=gpus or len(where.tree.gpus),
            sequence=_GPT_SEQUENCE if sequence is None else sequence, lora_rank=lora_rank, peak_share=peak_share,
            recomputes=recompute, in_flight_limit=in_flight, schedule=one_of("schedule", schedule, Schedule),
        )  # fmt: skip
        rows = list(_rows(asked, dict.fromkeys(chosen), quantised, tau, at_largest_batch=not batch))
        _show(asked, rows, out, own.notes if own else ())


def _rows(
    asked: ShardedScenario, modes: dict[Sharding, None], quantised: bool, tau: float, *, at_largest_batch: bool
) -> Iterator[ShardedRow]:
    for mode in modes:
        sharding = ZeroPP(quantised=quantised) if type(mode) is ZeroPP else mode
        policy = replace(asked.policy, sharding=sharding)
        yield predicted(replace(asked, policy=policy), threshold=tau, at_largest_batch=at_largest_batch)


def _show(asked: ShardedScenario, rows: list[ShardedRow], out: Path, notes: tuple[str, ...]) -> None:
    console = Console()
    what = f"LoRA of rank {asked.lora_rank}" if asked.lora_rank else "full fine-tuning"
    where = f"{asked.num_nodes} x {asked.gpus_per_node} GPUs of {asked.machine.name}"
    title = f"{asked.model_name}, {what}, {where}, simulated"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for number, name in enumerate(HEAD):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row.cells)
    console.print(table)
    for row in rows:
        if row.note:
            console.print(row.note, highlight=False, markup=False)
    for note in notes:
        console.print(note, highlight=False, markup=False)
    gpu = asked.machine.accelerator
    own = asked.own_model
    sample = f"a sample is a {own.sample}" if own else f"{asked.sequence} tokens a sample"
    pace = (
        f"{asked.peak_share:.0%} of {gpu.name}'s {gpu.fp16_flops_per_s / 1e12:.4g} TFLOP/s in fp16 (an assumption: "
        f"--peak-share), {sample}, collective {asked.policy.collective}, schedule {asked.schedule}"
    )
    console.print(f"Compute: {pace}. GB are those that leave one node in an iteration.", highlight=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    inputs = {"command": shlex.join(["coarse", *sys.argv[1:]]), "title": title, "compute": pace}
    if notes:
        inputs["model"] = " ".join(notes)
    out.write_text(json.dumps(document(rows, inputs), indent=1) + "\n", encoding="utf-8")
    console.print(f"wrote {out.as_posix()}", highlight=False, markup=False, soft_wrap=True)
