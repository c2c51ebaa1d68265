"""Train a small byte-level GPT on the standard library's sources, data-parallel over memory devices.

python experiments/train_gpt.py                              one worker with a memory device in the same process
mpirun -n 4 python experiments/train_gpt.py --mode coarse    half of the ranks workers, half memory devices
mpirun -n 4 python experiments/train_gpt.py --mode dense     the same, but one memory device does all
mpirun -n 4 python experiments/train_gpt.py --mode fcdp      sharded over the workers: fsdp, hybrid, zeropp, fcdp or odc
python experiments/train_gpt.py --mode single                plain PyTorch, without coarse
coarse run --workers 2 --devices 1 experiments/train_gpt.py --mode luwu --storage /nvme0/run --meta --layers 24
                                                             the model in the network, its states on a disk; with
                                                             --resume it goes on from the last committed step
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import torch

from experiments.gpt.corpus import load_corpus
from experiments.gpt.model import GptShape, initialise
from experiments.gpt.network import add_network_arguments, check_network_arguments, network_options
from experiments.gpt.progress import RunProgress
from experiments.gpt.rows import document, run_path, write_json
from experiments.gpt.teams import COARSE_MODES, MODES, POLICIES, is_strategy, open_team
from experiments.gpt.train import Report, Trainer, Training


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; defaults are those of Training and GptShape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--mode", default=os.environ.get("COARSE_SHARDING", os.environ.get("COARSE_MODE", "coarse")),
        help=f"{', '.join(MODES)}, or a strategy of your own as FILE.py:CLASS (docs/strategies.md)",
    )  # fmt: skip
    parser.add_argument("--policy", choices=POLICIES, help="of the mode coarse: who synchronises which gradients")
    add_network_arguments(parser)
    parser.add_argument("--steps", type=int, default=Training.steps)
    parser.add_argument("--batch", type=int, default=Training.global_rows, help="rows of the global batch")
    parser.add_argument("--context", type=int, default=GptShape.context, help="bytes in a row")
    parser.add_argument("--layers", type=int, default=GptShape.layers)
    parser.add_argument("--width", type=int, default=GptShape.width)
    parser.add_argument("--lr", type=float, default=Training.learning_rate, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=Training.seed)
    parser.add_argument("--out", type=Path, default=Path("results/train_gpt"), help="folder for the rows")
    parser.add_argument(
        "--exposed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure the exposed communication by steps without synchronisation in between",
    )
    given = parser.parse_args(arguments)
    check_network_arguments(parser, given, MODES)
    if given.mode not in MODES and not is_strategy(given.mode):
        parser.error(f"--mode must be one of {', '.join(MODES)}, or FILE.py:CLASS, got {given.mode!r}")
    if given.policy is not None and given.mode != "coarse":
        parser.error(f"--policy is for --mode coarse, which is {given.mode}; leave it out")
    is_of_coarse = given.mode in COARSE_MODES or is_strategy(given.mode)
    if is_of_coarse and given.mode != os.environ.get("COARSE_MODE", given.mode):
        parser.error(f"--mode is {given.mode} but COARSE_MODE={os.environ['COARSE_MODE']}; leave one of them out")
    return given


def training_from(options: argparse.Namespace) -> Training:
    """The options as a checked configuration."""
    return Training(
        mode=options.mode,
        steps=options.steps,
        global_rows=options.batch,
        shape=GptShape(layers=options.layers, width=options.width, context=options.context),
        learning_rate=options.lr,
        seed=options.seed,
        probe_every=Training.probe_every if options.exposed else None,
        on_meta=options.meta,
    )


def ignore(report: Report) -> None:
    """What ranks other than 0 do with a report."""


def main() -> None:
    """Train, and leave one document per worker in the folder of --out."""
    options = parse_arguments()
    training = training_from(options)
    torch.set_num_threads(1)
    team = open_team(training.mode, os.environ, options.policy, network_options(options, initialise))
    corpus = load_corpus()
    trainer = Trainer(training, team, corpus)
    progress = RunProgress(training.mode, training.steps) if team.rank == 0 else None
    with progress or nullcontext():
        summary, records = trainer.run(progress.show if progress else ignore)
    settings = {
        **asdict(training),
        "num_parameters": trainer.num_parameters,
        "policy": options.policy,
        "corpus_sha256": corpus.digest,
        "num_corpus_bytes": corpus.train.size,
    }
    rows = {**document(summary, records, settings), "dual_sync": team.dual_sync()}
    digest = trainer.digest()
    if team.rank == 0:
        print(f"{training.mode}  SHA-256 of the parameters {digest}", flush=True)
    write_json(run_path(options.out, training.mode, team.rank), rows)
    team.leave()


if __name__ == "__main__":
    main()
