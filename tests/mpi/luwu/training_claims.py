"""Claims of models in the network, on any number of workers and memory devices: FOLDER [OPTIONS as JSON [CLAIMS]]."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import coarse
import coarse.torch as ct
from coarse.errors import NotKeptError, UnsupportedError
from coarse.proxy.paged.stages import STAGES
from coarse.storage.paged.kernels import kernel_of
from coarse.torch.paged import fused
from coarse.torch.paged.optimizer import NetworkOptimizer
from tests.mpi.luwu.models import WIDTH, Net, loss_of, words_of
from tests.support.claims import Claim, raises, report_claims
from tests.support.paged_reference import Loss, Reference

FOLDER = Path(sys.argv[1])
OPTIONS = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
"""Of every model: who adds, and by what network."""
_number = 0
ADAMW = {"lr": 1e-2, "weight_decay": 0.1}


def in_network(
    model: nn.Module, kind: type[torch.optim.Optimizer] = torch.optim.AdamW, **options: Any
) -> tuple[nn.Module, NetworkOptimizer]:
    """A model in the network, in folders that no other claim has, by small chunks."""
    global _number
    _number += 1
    storage = [str(FOLDER / f"{_number}-{name}") for name in ("one", "two")]
    settings = ADAMW if kind is torch.optim.AdamW else {}
    return ct.model_in_network(
        model, kind, **{"storage": storage, "memory": 8 << 20, "chunk_elements": 1024, **settings, **OPTIONS, **options}
    )


def train(
    model: nn.Module,
    optimizer: NetworkOptimizer,
    loss: Loss = loss_of,
    *,
    steps: int = 20,
    first: int = 1,
    num_passes: int = 1,
    max_norm: float | None = None,
) -> None:
    """This worker's share of a training."""
    for step in range(first, steps + 1):
        for number in range(num_passes):
            loss(model, coarse.rank(), step, number).backward()
        if max_norm is not None:
            optimizer.clip_grad_norm(max_norm)
        optimizer.step()
        optimizer.zero_grad()


def require_equal(
    make: Callable[[], nn.Module],
    loss: Loss = loss_of,
    *,
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
    steps: int = 20,
    num_passes: int = 1,
    max_norm: float | None = None,
    settings: dict[str, Any] | None = None,
    groups: Callable[[str], dict[str, Any]] | None = None,
    dtype: torch.dtype | None = None,
    kernels: Callable[[str, dict[str, Any]], Any] = kernel_of,
    **options: Any,
) -> list[float]:
    """A training in the network has the bits of the reference; the coefficients of its steps."""
    settings = ADAMW if settings is None else settings
    model = make()
    reference = Reference(
        model, coarse.size(), kind.__name__, settings=settings, groups=groups, dtype=dtype or torch.float32,
        kernels=kernels,
    )  # fmt: skip
    model, optimizer = in_network(model, kind, groups=groups, dtype=dtype, **{**settings, **options})
    train(model, optimizer, loss, steps=steps, num_passes=num_passes, max_norm=max_norm)
    coefficients = [
        reference.step(loss, step, num_passes=num_passes, max_norm=max_norm) for step in range(1, steps + 1)
    ]
    state = model.state_dict()
    assert not reference.differing(state), reference.differing(state)
    optimizer.close()
    return coefficients


# --- the same bits


def a_step_updates_to_the_bit_of_one_place() -> None:
    require_equal(Net)


def so_do_updates_in_backward() -> None:
    require_equal(Net, update="backward")


def several_passes_are_summed_in_their_order() -> None:
    require_equal(Net, num_passes=3, steps=8)
    require_equal(Net, num_passes=3, steps=8, update="backward", accumulate=3)


def sums_that_wait_on_the_disk_are_the_same() -> None:
    for num_passes in (1, 2):
        require_equal(Net, steps=6, num_passes=num_passes, memory=300_000)


def a_commit_now_and_then_changes_nothing() -> None:
    require_equal(Net, commit_every=7)


def clipping_by_the_norm_is_exact() -> None:
    assert 0.1 < sum(one < 1.0 for one in require_equal(Net, max_norm=norm_below(0.5))) / 20 < 0.9


def clipping_that_speculates_gives_the_same_bits() -> None:
    for max_norm, least, most in ((1e9, 0.0, 0.0), (1e-3, 1.0, 1.0), (norm_below(0.9), 0.02, 0.3)):
        coefficients = require_equal(Net, max_norm=max_norm, update="backward", speculative=True)
        assert least <= sum(one < 1.0 for one in coefficients) / len(coefficients) <= most


def norm_below(share: float) -> float:
    """Below which so many of twenty steps' norms are, without clipping."""
    reference = Reference(Net(), coarse.size(), settings=ADAMW)
    norms = []
    for step in range(1, 21):
        clip = reference.step(loss_of, step, max_norm=1e30)
        assert clip == 1.0
        norms.append(reference.last_norm)
    return sorted(norms)[int(share * 20) - 1] * 1.0001


def torchs_fused_kernels_step_alike() -> None:
    require_equal(Net, kernel="torch-fused", kernels=fused.kernel_of)


def states_may_stay_in_device_memory() -> None:
    require_equal(Net, storage=None, steps=6)


def integer_sums_are_the_same_in_whatever_order() -> None:
    reference = Reference(Net(), coarse.size(), settings=ADAMW)
    for step in range(1, 7):
        reference.step(loss_of, step)
    found = []
    for turn in (0, 1):
        model, optimizer = in_network(Net(), sum="int64")
        worker = (coarse.rank() + turn) % coarse.size()
        train(model, optimizer, lambda model, _, *when, worker=worker: loss_of(model, worker, *when), steps=6)
        found.append(model.state_dict())
        optimizer.close()
    for name, master in reference.masters.items():
        assert torch.equal(found[0][name], found[1][name]), name
        torch.testing.assert_close(found[0][name].reshape(-1), torch.from_numpy(master), rtol=1e-3, atol=1e-3)


def a_timeline_shows_what_hides_behind_what() -> None:
    model, optimizer = in_network(Net(), timeline=FOLDER / "timeline")
    train(model, optimizer, steps=3)
    optimizer.close()
    if coarse.rank():
        return
    events = json.loads((FOLDER / "timeline" / "luwu.trace.json").read_text())["traceEvents"]
    kinds = {event["cat"] for event in events if event["ph"] == "X"}
    assert kinds == {*STAGES, "compute", "wait", "pull"} or kinds == {*STAGES, "compute", "wait", "pull", "push"}, kinds
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {f"worker {worker}" for worker in range(coarse.size())} < names
    assert "optimizer node 0" in names


def groups_by_name_have_settings_of_their_own() -> None:
    require_equal(Net, groups=lambda name: {"weight_decay": 0.0, "lr": 3e-3} if name.endswith("bias") else {})


def other_optimizers_step_alike() -> None:
    for kind, settings in (
        (torch.optim.Adam, {"lr": 1e-2, "betas": (0.8, 0.9)}),
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ):
        require_equal(Net, kind=kind, settings=settings, steps=8)


def settings_may_change_between_steps() -> None:
    model = Net()
    reference = Reference(model, coarse.size(), settings=ADAMW)
    model, optimizer = in_network(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for step in range(1, 5):
        loss_of(model, coarse.rank(), step, 0).backward()
        optimizer.step()
        scheduler.step()
        reference._kernels = dict.fromkeys(reference._kernels, kernel_with(1e-2 * 0.5 ** (step - 1)))
        reference.step(loss_of, step)
    assert not reference.differing(model.state_dict())
    optimizer.close()


def kernel_with(lr: float) -> object:
    return kernel_of("AdamW", {**ADAMW, "lr": lr})


def half_types_compute_over_float32_states() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        require_equal(Net, dtype=dtype, steps=6)


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
    optimizer.close()


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


# --- values


def values_are_seen_and_edited_when_they_are_summoned() -> None:
    model, optimizer = in_network(Net())
    train(model, optimizer, steps=2)
    with optimizer.summoned("head") as values:
        assert list(values) == ["head.weight"]
        assert model.head.weight.shape == values["head.weight"].shape
        seen = values["head.weight"].clone()
        values["head.weight"].zero_()  # it is not written
    with optimizer.summoned(model.head, write=True):
        assert torch.equal(model.head.weight, seen)
        nn.init.constant_(model.head.weight, 0.5)
    with optimizer.summoned() as values:
        assert (values["head.weight"] == 0.5).all()
        assert len(values) == len(list(model.named_parameters()))
    train(model, optimizer, steps=3, first=3)
    with raises(coarse.MismatchError, "value 'head.weight' differs between ranks") if coarse.size() > 1 else raises(
        ValueError
    ):
        with optimizer.summoned("head", write=True) as values:
            values["head.weight"].fill_(float(coarse.rank()))
        if coarse.size() == 1:
            raise ValueError
    optimizer.close()


def a_parameter_is_refused_to_whoever_uses_it_elsewhere() -> None:
    model, optimizer = in_network(Net())
    parameter = model.head.weight
    uses: list[Callable[[], object]] = [
        lambda: parameter + 1,
        lambda: parameter.data.fill_(0.0),
        lambda: nn.init.zeros_(parameter),
        lambda: setattr(parameter, "data", torch.zeros_like(torch.empty(parameter.shape))),
        lambda: setattr(parameter, "grad", torch.zeros(parameter.shape)),
        lambda: nn.functional.linear(torch.ones(1, WIDTH), parameter),
        lambda: model.double(),
    ]
    for use in uses:
        with raises(NotKeptError, "head.weight' " if use is not uses[-1] else "is used by"):
            use()
    loss_of(model, coarse.rank(), 1, 0).backward()
    with raises(NotKeptError, "optimizer.clip_grad_norm()"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler = torch.amp.GradScaler("cpu")
    with raises(NotKeptError, "no GradScaler"):
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # there are none
    optimizer.close()


def state_dicts_are_torchs_and_go_back_and_forth() -> None:
    model, optimizer = in_network(Net())
    train(model, optimizer, steps=3)
    plain = Net()
    plain.load_state_dict(model.state_dict())
    torchs = torch.optim.AdamW(plain.parameters(), **ADAMW)
    torchs.load_state_dict(optimizer.state_dict())
    assert torchs.state[plain.head.weight]["step"] == 3
    assert torchs.state[plain.head.weight]["exp_avg"].shape == plain.head.weight.shape
    other, again = in_network(Net())
    other.load_state_dict(plain.state_dict())
    again.load_state_dict(torchs.state_dict())
    train(model, optimizer, steps=6, first=4)
    train(other, again, steps=6, first=4)
    one, two = model.state_dict(), other.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    optimizer.close()
    again.close()


def a_saved_folder_is_hugging_faces_and_can_be_loaded() -> None:
    from safetensors.torch import load_file

    model, optimizer = in_network(Net())
    train(model, optimizer, steps=2)
    folder = FOLDER / "saved"
    optimizer.save(folder)
    ct.barrier()
    state = model.state_dict()
    found = load_file(folder / "model.safetensors")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in found)
    other, again = in_network(Net())
    again.load(folder)
    train(model, optimizer, steps=4, first=3)
    train(other, again, steps=4, first=3)
    one, two = model.state_dict(), other.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    with raises(coarse.StorageError, "cannot be loaded"):
        again.load(FOLDER / "nowhere")
    again.close()
    optimizer.close()


# --- steps that are none


def discarded_gradients_count_for_nothing() -> None:
    for options in ({}, {"update": "backward"}):
        model = Net()
        reference = Reference(model, coarse.size(), settings=ADAMW)
        model, optimizer = in_network(model, **options)
        for step in range(1, 4):
            loss_of(model, coarse.rank(), 100 + step, 0).backward()
            if step == 1:
                optimizer.zero_grad()
            else:
                optimizer.step(skip=True)
            loss_of(model, coarse.rank(), step, 0).backward()
            optimizer.step()
            optimizer.zero_grad()
            reference.step(loss_of, step)
        assert optimizer.steps == 3
        assert not reference.differing(model.state_dict())
        optimizer.close()


def a_backward_through_a_forward_before_the_step_is_refused() -> None:
    model, optimizer = in_network(Net())
    early = loss_of(model, coarse.rank(), 1, 0)
    loss_of(model, coarse.rank(), 2, 0).backward()
    optimizer.step()
    with raises(RuntimeError, "modified by an inplace operation"):
        early.backward()
    optimizer.close()


def what_updates_in_backward_cannot_take_back_is_refused() -> None:
    model, optimizer = in_network(Net(), update="backward")
    loss_of(model, coarse.rank(), 1, 0).backward()
    optimizer.param_groups[0]["lr"] = 0.5
    with raises(coarse.ConfigError, "changed between backward and step()"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = ADAMW["lr"]
    with raises(coarse.ConfigError, "speculative=True"):
        optimizer.clip_grad_norm(1.0)
    with raises(coarse.ConfigError, "after the 1 of accumulate=1"):
        loss_of(model, coarse.rank(), 1, 1).backward()
    optimizer.zero_grad()
    with raises(UnsupportedError, "takes no closure"):
        optimizer.step(lambda: 0.0)
    optimizer.close()


def changed_settings_make_speculative_updates_anew() -> None:
    model = Net()
    reference = Reference(model, coarse.size(), settings={**ADAMW, "lr": 0.5})
    model, optimizer = in_network(model, update="backward", speculative=True)
    loss_of(model, coarse.rank(), 1, 0).backward()
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    reference.step(loss_of, 1)
    assert not reference.differing(model.state_dict())
    optimizer.close()


def an_offloaded_optimizer_steps_shards() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 70))  # shards of several sizes
        models.append(ct.fully_shard(model, units=[nn.Linear]))
    ours, plain = models
    storage = {"storage": [FOLDER / "offloaded"], "memory": 8 << 20, "chunk_elements": 256}
    optimizers = (
        ct.OffloadedOptimizer(ours.parameters(), torch.optim.AdamW, **storage, **ADAMW),
        torch.optim.AdamW(plain.parameters(), **ADAMW),
    )
    for step in range(1, 6):
        rows = torch.randn(3, 7, generator=torch.Generator().manual_seed(10 * step + coarse.rank()))
        for model, optimizer in zip(models, optimizers, strict=True):
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.full_tensor(), other.full_tensor(), rtol=1e-4, atol=1e-5)
    mine, theirs = (optimizer.state_dict()["state"] for optimizer in optimizers)
    for number, state in mine.items():  # a worker has states of what it has a part of
        for name, values in state.items():
            torch.testing.assert_close(values, theirs[number][name], rtol=1e-4, atol=1e-5)
            assert type(values) is type(theirs[number][name])
    optimizers[0].close()


CLAIMS: tuple[Claim, ...] = (
    an_offloaded_optimizer_steps_shards,
    torchs_fused_kernels_step_alike,
    states_may_stay_in_device_memory,
    integer_sums_are_the_same_in_whatever_order,
    a_timeline_shows_what_hides_behind_what,
    a_step_updates_to_the_bit_of_one_place,
    so_do_updates_in_backward,
    several_passes_are_summed_in_their_order,
    sums_that_wait_on_the_disk_are_the_same,
    a_commit_now_and_then_changes_nothing,
    clipping_by_the_norm_is_exact,
    clipping_that_speculates_gives_the_same_bits,
    groups_by_name_have_settings_of_their_own,
    other_optimizers_step_alike,
    settings_may_change_between_steps,
    half_types_compute_over_float32_states,
    a_tied_parameter_gives_its_gradients_in_parts,
    a_block_that_is_called_twice_gives_its_gradients_in_parts,
    activation_checkpointing_changes_nothing,
    frozen_parameters_stay_and_send_nothing,
    a_parameter_that_nobody_used_is_left_alone,
    a_model_on_the_meta_device_is_made_unit_by_unit,
    buffers_stay_with_their_worker,
    workers_hold_two_units_and_nothing_at_rest,
    evaluation_pulls_and_leaves_nothing,
    values_are_seen_and_edited_when_they_are_summoned,
    a_parameter_is_refused_to_whoever_uses_it_elsewhere,
    state_dicts_are_torchs_and_go_back_and_forth,
    a_saved_folder_is_hugging_faces_and_can_be_loaded,
    discarded_gradients_count_for_nothing,
    a_backward_through_a_forward_before_the_step_is_refused,
    what_updates_in_backward_cannot_take_back_is_refused,
    changed_settings_make_speculative_updates_anew,
)


def main() -> None:
    ct.init()
    torch.set_num_threads(1)
    chosen = sys.argv[3].split(",") if len(sys.argv) > 3 else [claim.__name__ for claim in CLAIMS]
    report_claims([claim for claim in CLAIMS if claim.__name__ in chosen], FOLDER)


if __name__ == "__main__":
    main()
