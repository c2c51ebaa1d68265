"""Collectives that move and do not add: a gather of all members' rows, and a broadcast of one tensor."""

import torch

from coarse.session import current
from coarse.torch.device_state import before_writing_to
from coarse.torch.groups.process_sets import ProcessSet, global_process_set, group_of, key_among, members_of
from coarse.torch.handles import Waitable


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Waitable[torch.Tensor]:
    """Start an allgather: tensors end to end along the first dimension, in which alone they may differ.

    Raises (in `wait`):
        MismatchError: types or other dimensions differ, or members make different calls (on all members).
        StallError: members that do not call it within stall_timeout_s.
    """
    return group_of(process_set).gather_rows(tensor, key_among(process_set, "allgather", name))


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Waitable[torch.Tensor]:
    """Start a broadcast of the root's values into every member's tensor.

    Don't touch the tensor until `wait` has returned.

    `root_rank` is a `coarse.rank()`, in a process set too. Calls are matched by their order; `name` is for people.

    Raises:
        ValueError: the root is no member.
        MismatchError: members name different roots, or tensors of other sizes or types (in `wait`, on all members).
    """
    key = key_among(process_set, "broadcast", name)
    members = members_of(process_set)
    if root_rank not in members:
        raise ValueError(f"root_rank must be one of the ranks {list(members)}, got {root_rank!r}")
    if current().client_index != root_rank:
        before_writing_to([tensor])
    return group_of(process_set).copy_from(members.index(root_rank), tensor, key)
