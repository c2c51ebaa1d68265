"""Backend "coarse" of torch.distributed: plain DDP and FSDP2 scripts over coarse's transport.

    import coarse.torch
    torch.distributed.init_process_group("coarse")

The groups themselves are in coarse/torch/c10d/group.py; see docs/process_group.md.
"""

from typing import TYPE_CHECKING

from torch._C._distributed_c10d import _DistributedBackendOptions

from coarse import autoload
from coarse.torch.c10d.rendezvous import fill_in_env_rendezvous, join_job

if TYPE_CHECKING:
    from coarse.torch.c10d.group import CoarseProcessGroup


def register() -> None:
    """Register the backend, and let it do without torch's rendezvous variables.

    `import coarse.torch` calls it.
    """
    autoload.register()
    fill_in_env_rendezvous()


def create(options: _DistributedBackendOptions, _: object = None) -> "CoarseProcessGroup":
    """Make a group as c10d asks for one; join the job first."""
    join_job()
    from coarse.torch.c10d.group import CoarseProcessGroup  # which needs MPI; `import coarse.torch` must not start it

    return CoarseProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout, str(options.group_id)
    )
