"""Start of the MPI library in this process, with what it needs and a process lacks.

Importing this module starts nothing.
"""

import os
import pwd
import tempfile
from collections.abc import Mapping

from coarse.transport.arrival import NodeJob
from coarse.transport.launcher import joins_ranks

_NOBODYS_HOME = "/"


def home_for_mpi(environ: Mapping[str, str]) -> dict[str, str]:
    """Return HOME where it is not set, as under some services: Open MPI looks there for its parameters, or ends."""
    if environ.get("HOME"):
        return {}
    try:
        return {"HOME": pwd.getpwuid(os.geteuid()).pw_dir or _NOBODYS_HOME}
    except KeyError:  # a user of a container, whom its files do not know
        return {"HOME": _NOBODYS_HOME}


def start_mpi() -> None:
    """Import mpi4py, which starts MPI: when `init` is called, not with `import coarse`.

    A process that finds no other ranks is alone. Open MPI would leave shared memory and folders of
    such a process behind, so it gets neither memory to share nor a folder that outlives its start.
    """
    os.environ.update(home_for_mpi(os.environ))
    if joins_ranks(os.environ):
        job = NodeJob.of(os.environ)
        if job is not None and job.is_whole:
            os.environ.setdefault("OMPI_MCA_btl", "self,sm")  # ranks of one machine listen to no network
        _require_running_mpi()
        return
    before = {name: os.environ.get(name) for name in ("OMPI_MCA_btl", "TMPDIR")}
    with tempfile.TemporaryDirectory(prefix="coarse-start-") as folder:
        os.environ.update(OMPI_MCA_btl="self", TMPDIR=folder)
        _require_running_mpi()

    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def _require_running_mpi() -> None:
    """Import mpi4py, which starts MPI; where it was told not to, start MPI here."""
    from mpi4py import MPI

    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
