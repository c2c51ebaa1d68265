"""Two models in one process in mode odc: trained in turn, as a GAN's or an actor and its critic."""

import copy

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

import coarse
import coarse.torch as ct
from tests.mpi.odc.training import Net, backward, dealt, dealt_to_the_last, digest, samples, sharded, train, whole

Cache = bool | int | None


def _microbatches(model: Net, step: int, deal=dealt) -> int:
    """Compute this worker's; how many tokens they have."""
    every = samples(step)
    return sum(backward(model, every[sample]) for sample in deal(step)[coarse.rank()])


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def end_both_before_either_steps(cache: Cache) -> None:
    """Have the bits of two models that train one after the other."""
    models, alone = [sharded(cache=cache), sharded(cache=cache)], sharded(cache=cache)
    optimizers = [_adam(model) for model in models]
    for step in range(6):
        tokens = [_microbatches(model, step) for model in models]
        for model, num_tokens in zip(models, tokens, strict=True):
            ct.end_minibatch(model, num_tokens=num_tokens)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    train(alone, 6)
    assert digest(whole(models[0])) == digest(whole(models[1])) == digest(whole(alone))


def one_ends_more_often_than_it_steps(cache: Cache) -> None:
    """Others run a model that has ended and does not step, while workers without microbatches wait for the end of
    another one."""
    rare, often = sharded(cache=cache), sharded(cache=cache)
    optimizers = [_adam(model) for model in (rare, often)]
    for step in range(4):
        tokens = [_microbatches(model, step, dealt_to_the_last) for model in (rare, often)]
        ct.end_minibatch(often, num_tokens=tokens[1])
        ct.end_minibatch(rare, num_tokens=tokens[0])
        optimizers[1].step()
        optimizers[1].zero_grad()
        if step % 2:
            optimizers[0].step()
            optimizers[0].zero_grad()
    alone = sharded(cache=cache)
    train(alone, 4, dealt_to_the_last)
    assert digest(whole(often)) == digest(whole(alone))


def a_gan_is_that_of_one_process(cache: Cache) -> None:
    """The critic's gradients are wanted in its own step alone; the last worker computes twice what others do."""
    torch.manual_seed(0)
    alone = [nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 4)).double() for _ in range(2)]
    alone[1] = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 1)).double()
    shared = [ct.fully_shard(copy.deepcopy(model), mode="odc", cache=cache) for model in alone]
    drawn = torch.Generator().manual_seed(1)
    own = [(rank, 1 + (rank == coarse.size() - 1)) for rank in range(coarse.size())]
    optimizers = [[torch.optim.SGD(model.parameters(), lr=0.1) for model in pair] for pair in (alone, shared)]
    for _ in range(4):
        noise = torch.randn(coarse.size(), 2, 3, 5, generator=drawn, dtype=torch.float64)
        real = torch.randn(coarse.size(), 2, 3, 4, generator=drawn, dtype=torch.float64)
        for trains in (1, 0):
            for (generator, critic), pair, ranks in (
                (alone, optimizers[0], own), (shared, optimizers[1], [own[coarse.rank()]])
            ):  # fmt: skip
                critic.requires_grad_(trains == 1)
                for rank, num in ranks:
                    for number in range(num):
                        made = generator(noise[rank, number])
                        loss = critic(made.detach()) - critic(real[rank, number]) if trains else -critic(made)
                        loss.sum().backward()
                if critic is shared[1]:
                    ct.end_minibatch((generator, critic)[trains], num_tokens=1)
                else:
                    for parameter in (generator, critic)[trains].parameters():
                        parameter.grad /= coarse.size()
                pair[trains].step()
                pair[trains].zero_grad()
    for one, other in zip(shared, alone, strict=True):
        for found, wanted in zip(whole(one), other.parameters(), strict=True):
            torch.testing.assert_close(found, wanted.detach(), rtol=1e-9, atol=1e-9)


def both_load_after_both_have_created_states(cache: Cache) -> None:
    models = [sharded(cache=cache), sharded(cache=cache)]
    for model in models:
        get_state_dict(model, _adam(model))
    for model in models:
        for parameter in model.parameters():
            parameter.data.mul_(2)
    for model in models:
        train(model, 1)
    assert digest(whole(models[0])) == digest(whole(models[1]))
