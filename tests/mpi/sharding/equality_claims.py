"""Many steps in every mode, against one process alone and against each other; state that is kept and comes back."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy

import coarse.torch as ct
from tests.mpi.sharding import overlap_claims
from tests.mpi.sharding.runs import ends_of, joined, require_equal, started
from tests.support.claims import Claim, takes_all
from tests.support.references import Net, relative_error, whole

spot_steps = (0, 2, 4)
"""Where gradients from equal parameters are compared; the last step is the last of these."""
PRECISIONS: dict[str, tuple[torch.dtype, dict[str, object]]] = {
    "float64": (torch.float64, {}),
    "float32": (torch.float32, {}),
    "bfloat16": (torch.float32, {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)}),
}
FCDP = ("fcdp, tau 0", "fcdp, tau between", "fcdp, tau 1")
STORED = ("hybrid", "zeropp", "fcdp")
"""Modes whose state is kept and loaded."""


@functools.cache
def trained(mode: str | None, precision: str) -> dict[str, Tensor]:
    """Parameters, losses and norms after all steps; in some steps, gradients and the parameters they came from."""
    dtype, options = PRECISIONS[precision]
    run = started(Net().to(dtype), mode, **options)
    spots = {}
    for step in range(spot_steps[-1] + 1):
        if step not in spot_steps:
            run.train(step)
            continue
        spots |= {f"{step} before {name}": value for name, value in run.values().items()}
        run.loss(step).backward()
        spots |= {f"{step} gradient {name}": value for name, value in gradients_of(run.model).items()}
        run.step()
    return ends_of(run) | spots


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Every gradient whole, by name."""
    return {name: whole(parameter.grad).clone() for name, parameter in model.named_parameters()}


def equals_one_process_in_float64(mode: str) -> None:
    require_equal(trained(mode, "float64"), trained(None, "float64"), 1e-9)


def loses_as_one_process_in_float32(mode: str) -> None:
    found, wanted = trained(mode, "float32")["losses"], trained(None, "float32")["losses"]
    assert ((found - wanted).abs() <= 1e-5 * wanted.abs()).all(), (found, wanted)


def has_the_gradients_of_one_process_from_equal_parameters_in_float32(mode: str) -> None:
    found = trained(mode, "float32")
    for step in spot_steps:
        alone = started(Net(), None)
        prefix = f"{step} before "
        before = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
        alone.model.load_state_dict(before)
        alone.loss(step).backward()
        wanted = gradients_of(alone.model)
        norm = torch.stack([value.norm() for value in wanted.values()]).norm()
        errors = {name: (found[f"{step} gradient {name}"] - value).norm() / norm for name, value in wanted.items()}
        assert max(errors.values()) <= 1e-5, errors


def has_the_bits_of_fsdp(mode: str, precision: str) -> None:
    found, wanted = trained(mode, precision), trained("fsdp", precision)
    assert found.keys() == wanted.keys()
    wrong = {name: relative_error(found[name], wanted[name]) for name in wanted if not same_bits(found, wanted, name)}
    assert not wrong, wrong


def same_bits(found: dict[str, Tensor], wanted: dict[str, Tensor], name: str) -> bool:
    """Whether two records hold the same bytes under a name."""
    return found[name].reshape(-1).view(torch.uint8).equal(wanted[name].reshape(-1).view(torch.uint8))


def gives_its_whole_state_and_takes_it_back(mode: str) -> None:
    run, alone = started(Net().double(), mode), started(Net().double(), None)
    for one in (run, alone):
        one.train(0)
    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(run.model, options=options)
    require_equal(state, dict(alone.model.state_dict()), 1e-9)
    other = started(Net(seed=3).double(), mode)
    other.evaluate(1)  # what it gathers here is stale afterwards
    given = state if ct.rank() == 0 else {}
    set_model_state_dict(other.model, given, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    for one in (run, other):
        one.evaluate(1)
    assert joined(run.losses)[-1] == joined(other.losses)[-1]


def goes_on_from_a_checkpoint(mode: str, folder: Path) -> None:
    run, other = started(Net().double(), mode), started(Net(seed=3).double(), mode)
    for step in range(2):
        run.train(step)
    other.train(5)
    place = folder / f"checkpoint of {mode}"
    model, optimizer = get_state_dict(run.model, run.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=place)
    model, optimizer = get_state_dict(other.model, other.optimizer)
    dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=place)
    set_state_dict(other.model, other.optimizer, model_state_dict=model, optim_state_dict=optimizer)
    for one in (run, other):
        one.losses.clear()
        one.norms.clear()
        one.train(2)
        one.train(3)
    require_equal(ends_of(other), ends_of(run), 0.0)


def is_made_on_the_meta_device(mode: str) -> None:
    alone = started(Net().double(), None)
    state = {name: value.clone() for name, value in alone.model.state_dict().items()}
    with torch.device("meta"):
        model = Net().double()
    run = started(model, mode, materialise=lambda: loaded(model, state))
    for one in (run, alone):
        one.train(0)
        one.train(1)
    require_equal(ends_of(run), ends_of(alone), 1e-9)


def loaded(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Give a sharded model on the meta device its values."""
    model.to_empty(device="cpu")
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))


def claims(folder: Path) -> Iterator[Claim]:
    """Every claim of every mode it is for, named by both; in `make test` float32 in fsdp alone, whose bits fcdp has."""
    further = ("hybrid of all",) if takes_all() else ()
    for mode in ("fsdp", "fsdp in a ring", "hybrid", "hybrid of one", *further, "zeropp", *FCDP):
        yield of(mode, equals_one_process_in_float64)
        if takes_all() or mode == "fsdp":
            yield of(mode, loses_as_one_process_in_float32)
            yield of(mode, has_the_gradients_of_one_process_from_equal_parameters_in_float32)
    for mode in FCDP if takes_all() else ("fcdp, tau between",):
        for precision in PRECISIONS:
            yield of(mode, has_the_bits_of_fsdp, precision=precision)
    yield of("zeropp", has_the_bits_of_fsdp, precision="float64")
    for mode in STORED:
        yield of(mode, gives_its_whole_state_and_takes_it_back)
        if takes_all() or mode == "fcdp":
            yield of(mode, goes_on_from_a_checkpoint, folder=folder)
        yield of(mode, is_made_on_the_meta_device)
    for mode in ("zeropp", "fcdp"):
        for check in overlap_claims.CHECKS:
            yield of(mode, check)


def of(mode: str, check: Callable[..., None], **given: object) -> Claim:
    """A check on a mode as a claim with a name."""
    claim = functools.partial(check, mode, **given)
    precision = f" in {given['precision']}" if "precision" in given else ""
    claim.__name__ = f"{mode} {check.__name__}{precision}"  # type: ignore[attr-defined]
    return claim
