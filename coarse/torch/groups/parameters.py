"""Broadcast of a model's parameters from one rank to the others."""

from collections.abc import Mapping

import torch

from coarse.errors import MismatchError
from coarse.parallel.data.equal_values import require_same
from coarse.protocol.agreement import Entries, first_difference
from coarse.session import current
from coarse.torch.broadcasting import broadcast_tensors
from coarse.torch.groups.moving import broadcast_async_
from coarse.torch.groups.objects import allgather_object
from coarse.torch.groups.process_sets import ProcessSet, global_process_set
from coarse.torch.tensors import NamedTensors, require_whole, signature


def broadcast_parameters(
    params: NamedTensors, root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite every rank's tensors with the root's: a `state_dict()` or `named_parameters()`.

    `root_rank` is a `coarse.rank()`, in a process set too.

    Raises:
        MismatchError: the ranks' names, shapes or types, or the roots that they name, differ (on all ranks).
        JoinedError: the root has joined.
        TypeError: an item that is no dense tensor.
        ValueError: the root is no member.
    """
    named = list(params.items() if isinstance(params, Mapping) else params)
    for name, tensor in named:
        require_whole(tensor, name)
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            raise TypeError(
                f"{name!r}: a dense tensor was wanted, {type(tensor).__name__} came; leave it out, "
                "or broadcast it by itself"
            )
    require_same_among(process_set, [(name, signature(tensor)) for name, tensor in named], "parameter")
    if process_set is global_process_set:
        broadcast_tensors([tensor for _, tensor in named], root_rank, "coarse/parameters")
        return
    arriving = [broadcast_async_(tensor, root_rank, f"parameters/{name}", process_set) for name, tensor in named]
    for one in arriving:
        one.wait()


def require_same_among(process_set: ProcessSet, entries: Entries, what: str) -> None:
    """Raise MismatchError on every member, naming the first entry at fault, unless all members' are equal.

    For all workers it is `require_same` of coarse.parallel.data.equal_values.
    """
    if process_set is global_process_set:
        require_same(entries, what)
        return
    gathered = allgather_object([list(entry) for entry in entries], process_set=process_set)
    lists = [[(name, kind) for name, kind in theirs] for theirs in gathered]
    if any(theirs != lists[0] for theirs in lists):
        raise MismatchError(
            f"rank {current().client_index}: among the members of {process_set}: {first_difference(lists, what)}"
        )
