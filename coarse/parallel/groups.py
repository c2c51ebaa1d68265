"""The one thing that all groups of workers share in this process: opened when the first group is."""

from typing import TYPE_CHECKING

from coarse.collectives.shared import SharedByGroups

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime


def shared_by_groups(runtime: "Runtime") -> SharedByGroups:
    """Return what groups of a worker share; it ends when the worker leaves."""
    if runtime.groups is None:
        client = runtime.require_client()
        runtime.groups = SharedByGroups(client, runtime.groups_comm, runtime.placement)
        client.before_leaving.append(runtime.groups.close)
    return runtime.groups
