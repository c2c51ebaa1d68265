"""Function `end_minibatch`, and the hooks of optimizers that call it."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import coarse
from coarse.errors import ConfigError
from coarse.odc.torch.tree import OdcTree, checked_tokens, trees_in, trees_of

_MISFITS = ("raise", "keep")


def end_minibatch(model: nn.Module, *, num_tokens: float | None = None, misfits: str = "raise") -> None:
    """End the minibatch of a model in mode "odc" on all workers, and write its parameters' gradients.

    It is the only synchronization point of a minibatch; a worker calls it after its last microbatch, also where it had
    none. Afterwards gradients may be clipped, unscaled and logged, and the optimizer steps. `optimizer.step()` calls it
    where the script has not.

    Args:
        model: as it was given to `fully_shard`, or a module around it.
        num_tokens: number of tokens over which this worker's losses were summed, 0 where there was none; gradients
            are the sum of all workers' over the sum of these numbers, divided once in float64. None on all workers:
            over the number of workers, as FSDP2 has it.
        misfits: "raise", or "keep" NaN and infinities in gradients, where a GradScaler is to find them.

    Raises, on all workers:
        GradientRangeError: a gradient was NaN, infinite, or too large for the sum's window; none was written.
        MismatchError: some gave num_tokens and some did not; unequal microbatches with sum="worker-order".
        ConfigError: all gave 0 and pushed gradients all the same.
        DeadRankError: a worker has shut down, or died.
        StallError: nothing was heard of a worker for the stall limit; the same call goes on waiting.

    Raises, on this worker:
        ConfigError: a model in another mode; gradients that were set to None after their backward.
    """
    if misfits not in _MISFITS:
        raise ConfigError(f"misfits is one of {_MISFITS}, got {misfits!r}", key="misfits")
    tokens = checked_tokens(num_tokens)
    for tree in _trees_under(model):
        tree.end(tokens, keeps_misfits=misfits == "keep")


def publish(model: nn.Module) -> None:
    """Let others read this worker's shards in this minibatch, before it runs a forward; return at once.

    It is for a worker that is to evaluate while the others have not begun, or that never runs a model that others do.
    Forwards, `end_minibatch` and optimizers' steps publish as well. Parameters must not change afterwards until the
    minibatch has ended.

    Raises:
        ConfigError: a model in another mode; parameters that were changed since they were published.
    """
    for tree in _trees_under(model):
        tree.require_sound()
        tree.publish()


def minibatch_scale(total_tokens: float, model: nn.Module | None = None) -> float:
    """Return the factor of a loss that is a sum over tokens, where the minibatch's total is known.

    The sampler knows the total; then `end_minibatch` is called without num_tokens. It does not communicate. `model` is
    one that not all workers share.

    Raises:
        ConfigError: no tokens at all, or a model in another mode.
    """
    total = checked_tokens(total_tokens)
    if total <= 0:
        raise ConfigError(f"a minibatch has tokens, got a total of {total_tokens!r}", key="total_tokens")
    if model is None:
        return coarse.size() / total
    (model_of_tree, _), *_ = _trees_under(model)[0].models
    return len(model_of_tree.layout.members) / total


def _trees_under(model: nn.Module) -> list[OdcTree]:
    found = trees_in(model)
    if not found:
        raise ConfigError(
            f"this {type(model).__name__} was not sharded by coarse.torch.fully_shard(model, mode='odc'), which alone "
            "has minibatches to end", key="model",
        )  # fmt: skip
    return found


@cache
def watch_optimizers() -> None:
    """Have optimizers' steps end minibatches and publish."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: torch.optim.Optimizer, _args: object, _options: object) -> None:
    for tree in trees_of(optimizer):
        tree.before_step(optimizer)


def _after_step(optimizer: torch.optim.Optimizer, _args: object, _options: object) -> None:
    for tree in trees_of(optimizer):
        tree.after_step(optimizer)
