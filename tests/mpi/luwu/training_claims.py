"""Claims of models in the network, on any number of workers and memory devices: FOLDER [OPTIONS as JSON [CLAIMS]]."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from torch import nn

import coarse
import coarse.torch as ct
from coarse.errors import NotKeptError, UnsupportedError
from coarse.luwu.device.stages import STAGES
from coarse.luwu.store.kernels import kernel_of
from coarse.luwu.torch import fused
from tests.mpi.luwu import offloaded_claims, shape_claims
from tests.mpi.luwu.models import WIDTH, Net, loss_of
from tests.mpi.luwu.trained import ADAMW, FOLDER, in_network, require_equal, train
from tests.support.claims import Claim, raises, report_claims
from tests.support.paged_reference import Reference

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


def a_write_within_a_forward_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(5, WIDTH, max_norm=0.1), nn.Linear(WIDTH, WIDTH))
    model, optimizer = in_network(model, units=[nn.Embedding, nn.Linear])
    with raises(NotKeptError, "'0.weight' was written to within a forward", "summoned(write=True)"):
        model(torch.arange(5))
    with torch.no_grad(), raises(NotKeptError, "'0.weight' was written to"):
        model(torch.arange(5))
    with optimizer.summoned(model[0], write=True) as values:
        values["0.weight"].mul_(1e-3)  # within the norm
    model[0].max_norm = None
    model(torch.arange(5)).sum().backward()
    optimizer.step()
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
    again.save(folder, states=False)
    ct.barrier()
    assert not list(folder.glob("optimizer*"))  # those of other parameters
    assert not list(folder.glob("*.new"))
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


def parameters_that_come_later_are_refused_by_name() -> None:
    model = Net()
    model.head.requires_grad_(False)
    model, optimizer = in_network(model)
    with raises(UnsupportedError, "takes no parameters later", "groups="):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    model.head.requires_grad_()
    with raises(coarse.ConfigError, "'head.weight' was frozen when", "unfreeze it before"):
        loss_of(model, coarse.rank(), 1, 0)
    model.head.requires_grad_(False)
    model.norm.requires_grad_(False)  # and back
    train(model, optimizer, steps=1)
    before = model.state_dict()["norm.weight"]
    model.norm.requires_grad_()
    train(model, optimizer, first=2, steps=2)
    assert not torch.equal(model.state_dict()["norm.weight"], before)
    optimizer.close()


def a_resume_that_is_left_to_what_is_there_goes_on_or_begins() -> None:
    options = {"storage": [str(FOLDER / "auto-one"), str(FOLDER / "auto-two")], "resume": "auto"}
    for last in (0, 2):
        model, optimizer = in_network(Net(), **options)
        assert optimizer.steps == last
        train(model, optimizer, first=last + 1, steps=last + 2)
        state = model.state_dict()
        optimizer.close()
    reference = Reference(Net(), coarse.size(), settings=ADAMW)
    for step in range(1, 5):
        reference.step(loss_of, step)
    assert not reference.differing(state)
    with raises(coarse.StorageError, "another model's states"):
        in_network(Net(num_blocks=2), **options)
    with raises(coarse.ConfigError, "resume is True, False or 'auto'"):
        in_network(Net(), **{**options, "resume": "yes"})


CLAIMS: tuple[Claim, ...] = (
    a_resume_that_is_left_to_what_is_there_goes_on_or_begins,
    parameters_that_come_later_are_refused_by_name,
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
    values_are_seen_and_edited_when_they_are_summoned,
    a_parameter_is_refused_to_whoever_uses_it_elsewhere,
    a_write_within_a_forward_is_refused_by_name,
    state_dicts_are_torchs_and_go_back_and_forth,
    a_saved_folder_is_hugging_faces_and_can_be_loaded,
    discarded_gradients_count_for_nothing,
    a_backward_through_a_forward_before_the_step_is_refused,
    what_updates_in_backward_cannot_take_back_is_refused,
    changed_settings_make_speculative_updates_anew,
    *shape_claims.CLAIMS,
    *offloaded_claims.CLAIMS,
)


def main() -> None:
    ct.init()
    torch.set_num_threads(1)
    chosen = sys.argv[3].split(",") if len(sys.argv) > 3 else [claim.__name__ for claim in CLAIMS]
    report_claims([claim for claim in CLAIMS if claim.__name__ in chosen], FOLDER)


if __name__ == "__main__":
    main()
