"""Answers to Horovod's questions about its build: coarse runs on MPI, and on no other library."""

from coarse import arrays
from coarse.session import current


def cross_rank() -> int:
    """Return the number of this worker's node."""
    cluster = current().placement.cluster
    return cluster.nodes.index(cluster.worker_nodes[arrays.rank()])


def cross_size() -> int:
    """Return the number of nodes with workers."""
    return len(current().placement.cluster.nodes)


def is_homogeneous() -> bool:
    """Return whether all nodes have equally many workers."""
    nodes = current().placement.cluster.worker_nodes
    return len({nodes.count(node) for node in nodes}) == 1


def _yes() -> bool:
    """Return True."""
    return True


def _no(*_: object, **__: object) -> bool:
    """Return False."""
    return False


mpi_built = mpi_enabled = mpi_threads_supported = _yes
gloo_built = gloo_enabled = nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = _no
