"""The one thing that all groups of workers share in this process: opened when the first group is."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coarse.collectives.shared import SharedByGroups
    from coarse.runtime import Runtime


def shared_by_groups(runtime: "Runtime") -> "SharedByGroups":
    """Return what groups of a worker share; it ends when the worker leaves."""
    from coarse.collectives.shared import SharedByGroups  # which needs MPI; an import must not start it

    if runtime.groups is None:
        client = runtime.require_client()
        runtime.groups = SharedByGroups(client, runtime.groups_comm, runtime.placement)
        client.before_leaving.append(runtime.groups.close)
    return runtime.groups
