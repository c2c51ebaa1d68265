"""Fine-tune transformers' GPT-2, OPT or BERT on questions in SQuAD 1.1's format, with or without LoRA.

python experiments/finetune.py --mode single                                     plain PyTorch, one process
coarse run --workers 4 --devices 2 experiments/finetune.py --mode coarse         memory devices add gradients
coarse run --workers 4 --devices 2 experiments/finetune.py --mode fcdp --lora    sharded, with a host cache
coarse run --cluster 2x2 --rate 100mbit experiments/finetune.py --mode fcdp      on two nodes in a box; needs root
coarse run --workers 2 --devices 1 experiments/finetune.py --mode luwu --storage /nvme0/run     states on a disk

Weights are random and the tokenizer is trained on the questions at hand: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import torch

from coarse.protocol.clock import WallClock
from experiments.finetuning.features import RowShape
from experiments.finetuning.models import FAMILIES, SIZES, Lora
from experiments.finetuning.report import document, step_line, summary_lines
from experiments.finetuning.run import Places, Run
from experiments.finetuning.squad import read_squad
from experiments.finetuning.teams import COLLECTIVES, MODES, REPLICATED_MODES, SHARDED_MODES, open_team
from experiments.finetuning.training import FineTuning, StepRecord
from experiments.gpt.network import add_network_arguments, check_network_arguments, network_options
from experiments.gpt.rows import provenance, run_path, write_json

QUESTIONS = Path(__file__).parent / "data" / "everyday_questions.json"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; defaults are those of FineTuning."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, default=os.environ.get("COARSE_MODE", "coarse"))
    parser.add_argument("--collective", choices=COLLECTIVES, help="of the sharded modes; hierarchical by default")
    parser.add_argument("--quantised", action="store_true", help="of zeropp: forward gathers in int8")
    parser.add_argument("--family", choices=FAMILIES, default=FineTuning.family)
    parser.add_argument("--size", choices=SIZES, default=FineTuning.size)
    parser.add_argument("--lora", action="store_true", help="train adapters of q, k, v and o, and the head, alone")
    parser.add_argument("--lora-rank", type=int, help=f"r; {Lora.rank} by default")
    parser.add_argument("--data", type=Path, default=QUESTIONS, help="questions to train on, in SQuAD 1.1's format")
    parser.add_argument("--evaluate-on", type=Path, help="questions to score at the end; those of --data by default")
    parser.add_argument("--steps", type=int, default=FineTuning.steps)
    parser.add_argument("--batch", type=int, default=FineTuning.batch, help="rows of the global batch")
    parser.add_argument("--accumulate", type=int, default=FineTuning.accumulate, help="backward passes per step")
    parser.add_argument("--learning-rate", type=float, default=FineTuning.learning_rate)
    parser.add_argument("--clip", type=float, default=FineTuning.clip, help="largest norm of all gradients together")
    parser.add_argument("--length", type=int, default=RowShape.length, help="tokens of a row")
    parser.add_argument("--doc-stride", type=int, default=RowShape.doc_stride, help="tokens between windows")
    parser.add_argument("--vocabulary", type=int, default=FineTuning.vocabulary, help="largest size of the tokenizer")
    parser.add_argument("--seed", type=int, default=FineTuning.seed)
    parser.add_argument("--load", type=Path, help="start from a .safetensors file, or from a folder of a sharded mode")
    parser.add_argument("--save", type=Path, help="a .safetensors file, or a folder in the sharded modes")
    parser.add_argument("--out", type=Path, default=Path("results/finetune"), help="folder for the rows")
    add_network_arguments(parser)
    given = parser.parse_args(arguments)
    check_network_arguments(parser, given, MODES)
    for name, is_given in (("--resume", given.resume), ("--meta", given.meta)):
        if is_given:
            parser.error(f"{name} is not for fine-tuning, which begins with weights that it has; leave it out")
    if given.collective is not None and given.mode not in SHARDED_MODES:
        parser.error(f"--collective is for the modes {', '.join(SHARDED_MODES)}, not for {given.mode}; leave it out")
    if given.quantised and given.mode != "zeropp":
        parser.error(f"--quantised is for the mode zeropp, not for {given.mode}; leave it out")
    if given.lora_rank is not None and not given.lora:
        parser.error("--lora-rank is for --lora; add that, or leave it out")
    if given.mode in REPLICATED_MODES and given.mode != os.environ.get("COARSE_MODE", given.mode):
        parser.error(f"--mode is {given.mode} but COARSE_MODE={os.environ['COARSE_MODE']}; leave one of them out")
    return given


def settings_from(options: argparse.Namespace) -> FineTuning:
    """The options as a checked configuration."""
    return FineTuning(
        family=options.family,
        size=options.size,
        lora=Lora(rank=options.lora_rank or Lora.rank) if options.lora else None,
        row=RowShape(length=options.length, doc_stride=options.doc_stride),
        vocabulary=options.vocabulary,
        steps=options.steps,
        batch=options.batch,
        accumulate=options.accumulate,
        learning_rate=options.learning_rate,
        clip=options.clip,
        seed=options.seed,
    )


def main(arguments: list[str] | None = None) -> None:
    """Fine-tune, score, and leave one document per worker in the folder of --out."""
    options = parse_arguments(arguments)
    places = Places(load=options.load, save=options.save)
    try:
        settings = settings_from(options)
        places.check(options.mode)
        questions = read_squad(options.data)
        asked = read_squad(options.evaluate_on) if options.evaluate_on else questions
    except (ValueError, OSError) as error:  # alike on every rank, before any waits for another
        raise SystemExit(f"finetune.py: {error}") from None
    torch.set_num_threads(1)
    network = network_options(options) if options.mode == "luwu" else None
    team = open_team(options.mode, options.collective or COLLECTIVES[0], quantised=options.quantised, network=network)
    run = Run(settings, team, options.mode, questions, WallClock().now_s, places)

    def show(record: StepRecord) -> None:
        if team.rank == 0:
            print(step_line(record, settings.steps), flush=True)

    run.train(show)
    summary = run.summary(asked)
    if team.rank == 0:
        print(*summary_lines(summary, (options.evaluate_on or options.data).name), sep="\n", flush=True)
    chosen = {**asdict(settings), "collective": options.collective, "quantised": options.quantised}
    rows = {**provenance(), "settings": chosen, **document(summary, run.records)}
    write_json(run_path(options.out, options.mode, team.rank), rows)
    team.leave()


if __name__ == "__main__":
    main()
