"""Claims of models in the network: what modules and parameters may be like, and what workers hold of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import coarse
import coarse.torch as ct
from tests.mpi.luwu.models import WIDTH, Block, Net, loss_of, words_of
from tests.mpi.luwu.trained import ADAMW, FOLDER, in_network, require_equal, train
from tests.support.claims import Claim
from tests.support.paged_reference import Loss, Reference

# --- shapes of models


def a_tied_parameter_gives_its_gradients_in_parts() -> None:
    # the parts are added apart: not to the bit of autograd's own sum
    model = Net(is_tied=True)
    reference = Reference(model, coarse.size(), settings=ADAMW)
    model, optimizer = in_network(model)
    assert sum("words" in name or "head" in name for name in optimizer.units) == 1
    for update in range(1, 6):
        train(model, optimizer, steps=update, first=update)
        reference.step(loss_of, update)
    state = model.state_dict()
    assert torch.equal(state["words.weight"], state["head.weight"])
    for name, master in reference.masters.items():
        torch.testing.assert_close(state[name].reshape(-1), torch.from_numpy(master), rtol=1e-4, atol=1e-5)
    optimizer.close()


def a_block_that_is_called_twice_gives_its_gradients_in_parts() -> None:
    for options in ({}, {"update": "backward"}):
        model = Net(repeats=2)
        reference = Reference(model, coarse.size(), settings=ADAMW)
        model, optimizer = in_network(model, **options)
        train(model, optimizer, steps=4)
        for step in range(1, 5):
            reference.step(loss_of, step)
        state = model.state_dict()
        for name, master in reference.masters.items():
            torch.testing.assert_close(state[name].reshape(-1), torch.from_numpy(master), rtol=1e-4, atol=1e-5)
        optimizer.close()


def activation_checkpointing_changes_nothing() -> None:
    require_equal(lambda: Net(checkpoints="plain"), steps=6)
    require_equal(lambda: Net(checkpoints="plain"), steps=6, update="backward")
    require_equal(lambda: Net(checkpoints="reentrant"), steps=6)


def frozen_parameters_stay_and_send_nothing() -> None:
    def adapted() -> nn.Module:
        model = Net()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("narrow" in name or name == "head.weight")
        return model

    model = adapted()
    reference = Reference(model, coarse.size(), settings=ADAMW)
    model, optimizer = in_network(model)
    assert "blocks.0.frozen" in optimizer.units
    train(model, optimizer, steps=5)
    for step in range(1, 6):
        reference.step(loss_of, step)
    assert not reference.differing(model.state_dict())
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 7
    optimizer.close()


def a_parameter_that_nobody_used_is_left_alone() -> None:
    def loss(model: nn.Module, worker: int, step: int, number: int) -> torch.Tensor:
        words, _ = words_of(worker, step, number)
        hidden = model.words(words)
        if step % 2 or worker == 0:  # in every second step one worker alone
            hidden = model.blocks[0](hidden)
            return (hidden**2).sum()
        return (model.blocks[0](hidden.detach()) * 0.0).sum() + (hidden**2).sum()

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.used = nn.Parameter(torch.randn(WIDTH))
            self.unused = nn.Parameter(torch.randn(WIDTH))
            self.sometimes = nn.Parameter(torch.randn(WIDTH))

        def forward(self, x: torch.Tensor, *, takes: bool) -> torch.Tensor:
            return x * self.used * (self.sometimes if takes else 1.0)

    def of_parts(model: nn.Module, worker: int, step: int, number: int) -> torch.Tensor:
        words, _ = words_of(worker, step, number)
        x = words.float()[:, None].expand(-1, WIDTH)
        for part in model:
            x = part(x, takes=worker == step % coarse.size())
        return (x**2).mean()

    model = nn.ModuleList(Part() for _ in range(2))
    reference = Reference(model, coarse.size(), settings=ADAMW)
    model, optimizer = in_network(model)
    train(model, optimizer, of_parts, steps=5)
    for step in range(1, 6):
        reference.step(of_parts, step)
    assert not reference.differing(model.state_dict())
    assert reference.steps["0.unused"] == 0
    assert len(optimizer.state_dict()["state"]) == 4  # of six
    optimizer.close()


class OfOneAlone(torch.autograd.Function):
    """A product, which has no gradient for the second factor."""

    @staticmethod
    def forward(ctx: object, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(other)
        return one * other

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.saved_tensors[0], None


class Scaled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return OfOneAlone.apply(super().forward(x), self.gain)


def a_parameter_for_which_a_function_has_no_gradient_is_left_alone() -> None:
    def made() -> nn.Module:
        torch.manual_seed(8)
        return nn.Sequential(Scaled(), Scaled())

    def loss(model: nn.Module, worker: int, step: int, _: int) -> torch.Tensor:
        return model(rows_of(worker, step).detach()).square().mean()

    require_equal(made, loss, steps=3)  # with weight decay, which it would be given by a step


def a_model_on_the_meta_device_is_made_unit_by_unit() -> None:
    with torch.device("meta"):
        model = Net()

    def fill(module: nn.Module) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            nn.init.constant_(parameter, 0.01 * len(name) + parameter.dim())

    model, optimizer = in_network(model, initialise=fill)
    state = model.state_dict()
    assert all(value.unique().numel() == 1 for value in state.values())
    assert state["head.weight"][0, 0] == torch.tensor(0.01 * 6 + 2)
    loss_of(model, coarse.rank(), 1, 0).backward()
    optimizer.step()
    optimizer.close()
    with torch.device("meta"):
        blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
    torch.manual_seed(5)
    blocks, optimizer = in_network(blocks)
    torch.manual_seed(5)
    wanted = nn.Linear(WIDTH, WIDTH)
    assert torch.equal(blocks.state_dict()["0.weight"], wanted.weight)
    optimizer.close()


def buffers_stay_with_their_worker() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))
    model, optimizer = in_network(model)
    torch.manual_seed(coarse.rank())
    model(torch.randn(8, WIDTH)).sum().backward()
    optimizer.step()
    means = ct.allgather(model[1].running_mean[None].clone())
    assert coarse.size() == 1 or not torch.equal(means[0], means[1])
    optimizer.save(FOLDER / "buffers")
    ct.barrier()
    model[1].running_mean.fill_(-1.0)
    optimizer.load(FOLDER / "buffers")
    assert torch.equal(model[1].running_mean, means[0])  # worker 0's are saved
    assert model[1].num_batches_tracked == 1
    optimizer.close()


class Smooth(nn.Module):
    """Blocks over inputs that may want gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def rows_of(worker: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + worker)
    return torch.randn(4, WIDTH, generator=generator, requires_grad=True)


def penalised(model: nn.Module, worker: int, step: int, _: int) -> torch.Tensor:
    """A loss whose gradients towards its inputs are to be of length one."""
    rows = rows_of(worker, step)
    output = model(rows)
    (slope,) = torch.autograd.grad(output.sum(), rows, create_graph=True)
    return output.square().mean() + (slope.norm(dim=1) - 1).square().mean()


def penalty(model: nn.Module, worker: int, step: int, number: int) -> torch.Tensor:
    """That alone, on another forward."""
    rows = rows_of(worker, step)
    (slope,) = torch.autograd.grad(model(rows).sum(), rows, create_graph=True)
    return slope.square().mean()


def weighted(model: nn.Module, worker: int, step: int, _: int) -> torch.Tensor:
    """A loss divided by its gradient's norm towards its inputs, which is kept constant."""
    rows = rows_of(worker, step)
    loss = model(rows).square().mean()
    (slope,) = torch.autograd.grad(loss, rows, retain_graph=True)
    return loss / slope.norm()


def gradients_towards_inputs_are_taken_within_a_step() -> None:
    for loss in (penalised, penalty, weighted):
        for options in ({}, {"update": "backward"}):
            model = Smooth()
            reference = Reference(model, coarse.size(), settings=ADAMW)
            model, optimizer = in_network(model, **options)
            train(model, optimizer, loss, steps=4)
            for step in range(1, 5):
                reference.step(loss, step)
            state = model.state_dict()
            for name, master in reference.masters.items():
                torch.testing.assert_close(state[name].reshape(-1), torch.from_numpy(master), rtol=1e-4, atol=1e-5)
            optimizer._memories.drop_ahead()
            assert all(memory.nbytes == 0 for memory in optimizer._memories.all)
            optimizer.close()


def gradients_that_are_asked_for_between_steps_are_none_of_the_steps() -> None:
    """A saliency map, say."""

    def probed(model: nn.Module, worker: int, step: int, _: int) -> torch.Tensor:
        rows = rows_of(worker, step)
        if step > 1:
            torch.autograd.grad(model(rows).sum(), rows)
        return model(rows).square().mean()

    require_equal(Smooth, probed, steps=5)
    require_equal(Smooth, probed, steps=5, update="backward")


@dataclass
class Hidden:
    """What blocks may hand on."""

    values: torch.Tensor
    scale: float
    more: list[torch.Tensor]


@dataclass(frozen=True)
class Frozen:
    """The same, for good."""

    hidden: Hidden


class Handing(Block):
    """Takes and returns dataclasses."""

    def forward(self, hidden: Hidden | Frozen) -> Hidden | Frozen:
        if isinstance(hidden, Frozen):
            return self(hidden.hidden)
        x = super().forward(hidden.values) * hidden.scale + hidden.more[0]
        made = Hidden(x, 0.5, [hidden.more[0] * 2])
        return Frozen(made) if hidden.scale == 0.5 else made


class Writing(Block):
    """Writes to its input first, and returns a view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.9)
        x[:, 1] += 1.0
        return super().forward(x).view(-1, WIDTH)


class Auxiliary(Block):
    """Keeps losses, and what they are made of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        hidden = self.widen(output)
        self.aux = hidden.square().mean()
        self.kept = {"logits": [self.narrow(torch.tanh(hidden))]}
        return output


class Stacked(nn.Module):
    """Blocks of a kind, and what goes between them."""

    def __init__(self, kind: type[Block] | Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(kind() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        hands = isinstance(self.blocks[0], Handing)
        hidden = Hidden(x, 1.0, [x]) if hands else x
        for block in self.blocks:
            hidden = block(hidden)
            if isinstance(block, Writing):
                hidden[0].mul_(1.5)
                hidden.view(-1)[:WIDTH].add_(1.0)
        while isinstance(hidden, Frozen | Hidden):
            hidden = hidden.hidden if isinstance(hidden, Frozen) else hidden.values
        return hidden


def of_stack(model: nn.Module, worker: int, step: int, _: int) -> torch.Tensor:
    loss = model(rows_of(worker, step).detach()).square().mean()
    for block in model.modules():
        if isinstance(block, Auxiliary):
            loss = block.aux + loss + 0.1 * block.kept["logits"][0].abs().mean()
    return loss


def require_close(make: Callable[[], nn.Module], loss: Loss, **options: object) -> None:
    """As require_equal, but of models that cannot be copied, or whose parts of gradients are added apart."""
    for update in ("step", "backward"):
        twin = make()
        plain = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
        model, optimizer = in_network(make(), torch.optim.SGD, lr=0.05, momentum=0.9, update=update, **options)
        for step in range(1, 5):
            train(model, optimizer, loss, first=step, steps=step)
            begun = {name: buffer.clone() for name, buffer in twin.named_buffers()}
            for worker in range(coarse.size()):  # each from the same buffers
                for name, buffer in twin.named_buffers():
                    buffer.data.copy_(begun[name])
                (loss(twin, worker, step, 0) / coarse.size()).backward()
            plain.step()
            plain.zero_grad()
        state = model.state_dict()
        for name, wanted in twin.state_dict().items():
            torch.testing.assert_close(state[name], wanted, rtol=1e-4, atol=1e-5)
        assert all(memory.nbytes == 0 for memory in optimizer._memories.all if memory is not optimizer._memories._ahead)
        optimizer.close()


def blocks_may_take_and_return_dataclasses() -> None:
    require_close(lambda: Stacked(Handing), of_stack)


def blocks_may_write_to_their_inputs_and_callers_to_their_outputs() -> None:
    require_close(lambda: Stacked(Writing), of_stack)


def blocks_may_keep_losses_beside_their_outputs() -> None:
    require_close(lambda: Stacked(Auxiliary), of_stack)


def hooks_of_old_norms_find_their_parameters() -> None:
    def normed(norm: Callable[..., nn.Module]) -> nn.Module:
        block = Block()
        norm(block.widen)
        return block

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for norm in (nn.utils.weight_norm, nn.utils.spectral_norm):
            require_close(lambda norm=norm: Stacked(lambda: normed(norm)), of_stack)
            require_close(
                lambda norm=norm: Stacked(lambda: norm(nn.Linear(WIDTH, WIDTH))), of_stack, units=[nn.Linear]
            )


class Recurrent(nn.Module):
    """Layers over packed sequences, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.layers = nn.ModuleList([nn.GRU(WIDTH, WIDTH), nn.LSTM(WIDTH, WIDTH)])
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_sequence([x, x[1:]], enforce_sorted=True)
        for layer in self.layers:
            packed, _ = layer(packed)
        return self.head(packed.data)


def recurrent_layers_take_and_return_packed_sequences() -> None:
    require_close(Recurrent, of_stack, units=[nn.GRU, nn.LSTM])


# --- memory


def workers_hold_two_units_and_nothing_at_rest() -> None:
    """Beside the rest of the root, whose forward goes around all others'."""
    model, optimizer = in_network(Net(num_blocks=6))
    memories = optimizer._memories.all
    largest = max(memory.unit.num_elements * 4 for memory in memories)
    root = next(memory for memory in memories if memory.unit.name == "")
    peaks = []
    use = optimizer._memories.use

    def watched(numbers: list[int]) -> None:
        use(numbers)
        peaks.append(sum(memory.nbytes for memory in memories if memory is not root))

    optimizer._memories.use = watched
    train(model, optimizer, steps=3)
    assert 0 < max(peaks) <= 2 * largest, (max(peaks), largest)
    ahead = optimizer._memories._ahead
    assert [memory.unit.name for memory in memories if memory.nbytes and memory is not ahead] == []
    optimizer._memories.drop_ahead()
    assert all(memory.nbytes == 0 for memory in memories)
    optimizer.close()


def evaluation_pulls_and_leaves_nothing() -> None:
    model, optimizer = in_network(Net(), update="backward")
    train(model, optimizer, steps=2)
    words, _ = words_of(0, 9, 9)
    with torch.no_grad():
        before = model(words)
    loss_of(model, coarse.rank(), 3, 0).backward()
    with torch.no_grad():
        tentative = model(words)  # the updates are made, and do not count yet
    assert torch.equal(before, tentative)
    values = model.state_dict()["head.weight"]
    optimizer.step()
    with torch.no_grad():
        after = model(words)
    assert not torch.equal(before, after)
    assert not torch.equal(values, model.state_dict()["head.weight"])
    optimizer.close()


CLAIMS: tuple[Claim, ...] = (
    a_tied_parameter_gives_its_gradients_in_parts,
    a_block_that_is_called_twice_gives_its_gradients_in_parts,
    activation_checkpointing_changes_nothing,
    frozen_parameters_stay_and_send_nothing,
    a_parameter_that_nobody_used_is_left_alone,
    a_parameter_for_which_a_function_has_no_gradient_is_left_alone,
    a_model_on_the_meta_device_is_made_unit_by_unit,
    buffers_stay_with_their_worker,
    gradients_towards_inputs_are_taken_within_a_step,
    gradients_that_are_asked_for_between_steps_are_none_of_the_steps,
    blocks_may_take_and_return_dataclasses,
    blocks_may_write_to_their_inputs_and_callers_to_their_outputs,
    blocks_may_keep_losses_beside_their_outputs,
    hooks_of_old_norms_find_their_parameters,
    recurrent_layers_take_and_return_packed_sequences,
    workers_hold_two_units_and_nothing_at_rest,
    evaluation_pulls_and_leaves_nothing,
)
