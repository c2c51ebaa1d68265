"""Weights in one file of safetensors, in every mode the same, or a sharded run's state in a folder of torch's.

[Note: two formats] `NAME.safetensors` holds the whole weights under the names that they have in one process: any mode
reads it. A folder holds every worker's shards and optimizer state (torch.distributed.checkpoint): nothing is gathered,
and any number of workers of a sharded mode reads it. Torch pickles the folder's metadata, so read only folders whose
origin you know.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from experiments.finetuning.teams import SHARDED_MODES, Team

SUFFIX = ".safetensors"


class CheckpointFileError(ValueError):
    """A checkpoint that this run cannot read."""


def check_path(path: Path, mode: str) -> None:
    """ValueError if a run in `mode` can neither write nor read a checkpoint of that name."""
    if path.suffix != SUFFIX and mode not in SHARDED_MODES:
        raise ValueError(
            f"{path} names a folder, which is for the modes {', '.join(SHARDED_MODES)}; "
            f"in mode {mode} name a file that ends in {SUFFIX}"
        )


def save(path: Path, model: nn.Module, optimizer: Optimizer, team: Team, mode: str) -> None:
    """Write a checkpoint; all workers call it. See [Note: two formats]."""
    check_path(path, mode)
    if path.suffix != SUFFIX:
        from torch.distributed import checkpoint

        path.mkdir(parents=True, exist_ok=True)
        checkpoint.save(_state(model, optimizer), checkpoint_id=path)
        return
    weights = _whole_weights(model) if mode in SHARDED_MODES else model.state_dict()
    if team.rank == 0:
        from safetensors.torch import save_file

        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".tmp")
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, unfinished)
        unfinished.replace(path)


def load_weights(path: Path, model: nn.Module) -> None:
    """Read a file of weights into a model that is whole, thus before it joins a team.

    Raises:
        CheckpointFileError: the file is torn, or holds another model's weights.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise CheckpointFileError(f"{path} is no whole file of safetensors: {error}") from None
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    differing = wanted.items() ^ {name: tuple(tensor.shape) for name, tensor in weights.items()}.items()
    if differing:
        names = sorted({name for name, _ in differing})
        raise CheckpointFileError(_other_model(path, f"{len(names)} weights differ, of them {', '.join(names[:3])}"))
    model.load_state_dict(weights)


def load_shards(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Read a folder into a sharded model and its optimizer; all workers call it.

    Raises:
        CheckpointFileError: the folder is not whole, or holds another model's state.
    """
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import CheckpointException
    from torch.distributed.checkpoint.state_dict import set_state_dict

    state = _state(model, optimizer)
    try:
        checkpoint.load(state, checkpoint_id=path)
    except (CheckpointException, RuntimeError, KeyError) as error:
        raise CheckpointFileError(_other_model(path, str(error))) from None
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def _other_model(path: Path, what: str) -> str:
    return (
        f"{path} can't be read into this model: {what}; "
        "was it saved with another --family, --size, --lora, --vocabulary, --length or --data?"
    )


def _state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """What a folder holds: sharded tensors, by the names of parameters."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, state = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": state}


def _whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The gathered weights on rank 0, nothing on the others."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
