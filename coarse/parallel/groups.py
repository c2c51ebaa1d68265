"""Resources that all groups of workers share in this process, opened with the first group."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coarse.collectives.shared import SharedByGroups
    from coarse.runtime import Runtime


def shared_by_groups(runtime: "Runtime") -> "SharedByGroups":
    """Return the resources that groups of a worker share; they end when the worker leaves."""
    from coarse.collectives.shared import SharedByGroups  # which needs MPI; an import must not start it

    if runtime.groups is None:
        client = runtime.require_client()
        runtime.groups = SharedByGroups(client, runtime.groups_comm, runtime.placement)
        client.before_leaving.append(runtime.groups.close)
    return runtime.groups
