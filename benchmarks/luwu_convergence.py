"""LuWu's figure 16, live: losses of a GPT in bfloat16 under LuWu, under ZeRO-Infinity, and in one process's memory.

python benchmarks/luwu_convergence.py --storage DIR    (minutes; starts its jobs itself)

Float32 states and updates are the same in all three; what differs is the order in which gradients are added, and in
which type: between workers in float32 (LuWu), in bfloat16 by FSDP's reduce-scatter, or not at all.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import torch
from torch import nn

from benchmarks.provenance import provenance
from experiments.gpt.corpus import Corpus, load_corpus
from experiments.gpt.model import Block, Gpt, GptShape

RESULT = Path(__file__).parent / "results" / "luwu-convergence.json"
MODES = ("luwu", "zero-infinity", "memory")
NUM_WORKERS, MICRO_BATCH = 2, 8
SHAPE = GptShape(layers=4, width=128, context=128)
STEPS, SHOWN = 200, (1, 10, 25, 50, 100, 150, 200)
BAND = 0.02
"""Of a loss: how far two curves, each the mean of ten steps, may lie apart; fixed before they were drawn."""
SMOOTHED = 10
SETTINGS = {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95)}


def main() -> None:
    """All three, as a table and as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", type=Path, required=True, help="a folder on a disk")
    parser.add_argument("--job", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        run_job(given.job, given.storage, given.out)
        return
    losses = {mode: started(mode, given.storage) for mode in MODES}
    document = {**provenance("luwu_convergence.py", ["--storage", "DIR"], 1), "kind": "measured", "losses": losses,
                "apart": show(losses)}  # fmt: skip
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


def started(mode: str, storage: Path) -> list[float]:
    """One mode's losses, the mean over workers, step by step."""
    with tempfile.TemporaryDirectory() as out:
        file = Path(out) / "losses.json"
        coarse = Path(sys.executable).parent / "coarse"
        launched = [str(coarse), "run", "--workers", str(NUM_WORKERS), "--devices", "1"]
        if mode == "memory":
            launched = [sys.executable]
        job = [__file__, "--storage", str(storage / "states"), "--job", mode, "--out", str(file)]
        try:
            subprocess.run([*launched, *job], check=True, capture_output=True, text=True, timeout=900)
            found: list[float] = json.loads(file.read_text())
        finally:
            shutil.rmtree(storage / "states", ignore_errors=True)
    return found


def run_job(mode: str, storage: Path, out: Path) -> None:
    """Train by one mode; worker 0 writes the losses."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, corpus = Gpt(SHAPE), load_corpus()
    if mode == "memory":
        losses = trained_in_memory(model, corpus)
        out.write_text(json.dumps(losses))
        return
    import coarse.torch as ct

    ct.init()
    trained, optimizer = opened(mode, model, storage)
    losses = []
    for step in range(1, STEPS + 1):
        loss = loss_of(trained, corpus, step, ct.rank(), NUM_WORKERS)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(ct.push_pull(loss.detach().double().view(1), "loss")[0]))
    if ct.rank() == 0:
        out.write_text(json.dumps(losses))
    optimizer.close()


def opened(mode: str, model: nn.Module, storage: Path) -> tuple[nn.Module, Any]:
    """The model that computes in bfloat16, and an optimizer whose states are float32 on a disk."""
    import coarse.torch as ct

    if mode == "luwu":
        return ct.model_in_network(
            model, torch.optim.AdamW, storage=[storage], dtype=torch.bfloat16, memory=64 << 20, **SETTINGS
        )
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model = ct.fully_shard(model, units=[Block], mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    optimizer = ct.OffloadedOptimizer(
        model.parameters(), torch.optim.AdamW, storage=[storage], memory=64 << 20, **SETTINGS
    )
    return model, optimizer


def trained_in_memory(model: nn.Module, corpus: Corpus) -> list[float]:
    """One process: float32 parameters, of which forward and backward have a copy in bfloat16."""
    optimizer = torch.optim.AdamW(model.parameters(), **SETTINGS)  # type: ignore[arg-type]
    computing = Gpt(SHAPE).to(torch.bfloat16)
    losses = []
    for step in range(1, STEPS + 1):
        own: list[float] = []
        with torch.no_grad():
            for copy, parameter in zip(computing.parameters(), model.parameters(), strict=True):
                copy.copy_(parameter)
                parameter.grad = torch.zeros_like(parameter)
        for worker in range(NUM_WORKERS):
            computing.zero_grad()
            loss = loss_of(computing, corpus, step, worker, NUM_WORKERS)
            loss.backward()
            own.append(float(loss))
            for copy, parameter in zip(computing.parameters(), model.parameters(), strict=True):
                assert copy.grad is not None
                assert parameter.grad is not None
                parameter.grad += copy.grad.float() / NUM_WORKERS
        optimizer.step()
        losses.append(sum(own) / NUM_WORKERS)
    return losses


def loss_of(model: nn.Module, corpus: Corpus, step: int, worker: int, workers: int) -> torch.Tensor:
    """Of a worker's micro-batch."""
    batch = corpus.batch(
        step, seed=0, global_rows=workers * MICRO_BATCH, context=SHAPE.context, worker=worker, workers=workers
    )
    loss: torch.Tensor = model(torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets))
    return loss


def show(losses: dict[str, list[float]]) -> dict[str, float]:
    """The table; how far each curve is from luwu's at most, as a share."""
    print(f"| step | {' | '.join(MODES)} |\n|---:|{'---:|' * len(MODES)}")
    for step in SHOWN:
        print(f"| {step} | " + " | ".join(f"{losses[mode][step - 1]:.4f}" for mode in MODES) + " |")
    curves = {mode: smoothed(values) for mode, values in losses.items()}
    apart = {
        mode: max(abs(one / other - 1) for one, other in zip(curves["luwu"], curves[mode], strict=True))
        for mode in MODES[1:]
    }
    for mode, share in apart.items():
        verdict = "yes" if share <= BAND else "no"
        print(f"luwu within {BAND:.0%} of {mode}, by means of {SMOOTHED} steps: {share:.2%}, {verdict}")
    return apart


def smoothed(values: list[float]) -> list[float]:
    """Means of so many steps one after the other."""
    return [sum(values[at : at + SMOOTHED]) / SMOOTHED for at in range(len(values) - SMOOTHED + 1)]


if __name__ == "__main__":
    main()
