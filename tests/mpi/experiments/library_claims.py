"""transformers' Trainer and generate, and Accelerate, over the backend "coarse", beside one process."""

from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import coarse.torch as ct

STEPS, LENGTH, LEARNING_RATE = 3, 12, 1e-2


def model() -> GPT2LMHeadModel:
    """A small GPT-2, the same on every worker."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 50, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **rates, bos_token_id=0, eos_token_id=49, pad_token_id=49))


def rows() -> list[dict[str, Tensor]]:
    """Two texts for each worker, so that every step takes all of them."""
    tokens = torch.randint(1, 49, (2 * ct.size(), LENGTH), generator=torch.Generator().manual_seed(2))
    labels = tokens.clone()
    labels[:, 0] = -100  # nothing stands before it, but Trainer would count it
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def optimizer_of(trained: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(trained.parameters(), lr=LEARNING_RATE, momentum=0.9)


def trained_alone() -> GPT2LMHeadModel:
    """The model after as many steps in this process alone."""
    alone = model()
    optimizer = optimizer_of(alone)
    texts = {name: torch.stack([row[name] for row in rows()]) for name in ("input_ids", "labels")}
    for _ in range(STEPS):
        optimizer.zero_grad()
        alone(**texts).loss.backward()
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
        optimizer.step()
    return alone


def require_trained_alike(found: torch.nn.Module) -> None:
    """The same values as in one process, up to the order of sums."""
    for (name, mine), wanted in zip(found.named_parameters(), trained_alone().parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


def begin() -> None:
    """What a script does before it imports anything that asks for the process group."""
    if not dist.is_initialized():
        dist.init_process_group("coarse")


def trainer_takes_the_process_group_that_there_is() -> None:
    begin()
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=2,
            max_steps=STEPS,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            lr_scheduler_type="constant",
            disable_tqdm=True,
        )
        assert arguments.world_size == ct.size()
        ours = model()
        trainer = Trainer(ours, arguments, train_dataset=rows(), optimizers=(optimizer_of(ours), None))
        trainer.train()
    assert isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)
    require_trained_alike(ours)


def accelerate_takes_the_process_group_that_there_is() -> None:
    begin()
    accelerator = Accelerator(cpu=True)
    assert (accelerator.num_processes, accelerator.process_index) == (ct.size(), ct.rank())
    ours: Any = model()
    optimizer = optimizer_of(ours)
    ours, optimizer, loader = accelerator.prepare(ours, optimizer, DataLoader(rows(), batch_size=2))  # type: ignore[arg-type]
    for _ in range(STEPS):
        for texts in loader:
            optimizer.zero_grad()
            accelerator.backward(ours(**texts).loss)
            accelerator.clip_grad_norm_(ours.parameters(), 1.0)
            optimizer.step()
    require_trained_alike(accelerator.unwrap_model(ours))


def generate_gives_the_text_of_one_process() -> None:
    prompts = torch.randint(1, 49, (2, 5), generator=torch.Generator().manual_seed(ct.rank()))
    options = {"max_new_tokens": 6 + ct.rank(), "min_new_tokens": 6 + ct.rank(), "do_sample": False}
    wanted = model().generate(prompts, **options)
    for mode in ("fsdp", "fcdp"):
        sharded = ct.fully_shard(model(), mode)
        register_fsdp_forward_method(sharded, "generate")
        for _ in range(2):
            assert torch.equal(sharded.generate(prompts, synced_gpus=True, **options), wanted), mode


CLAIMS = [
    trainer_takes_the_process_group_that_there_is,
    accelerate_takes_the_process_group_that_there_is,
    generate_gives_the_text_of_one_process,
]
