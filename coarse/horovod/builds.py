"""What scripts ask Horovod how it was built, answered for coarse: it runs on MPI, and on no other library."""

from coarse import arrays
from coarse.session import current


def cross_rank() -> int:
    """This worker's node, by number."""
    cluster = current().placement.cluster
    return cluster.nodes.index(cluster.worker_nodes[arrays.rank()])


def cross_size() -> int:
    """How many nodes have workers."""
    return len(current().placement.cluster.nodes)


def is_homogeneous() -> bool:
    """Whether all nodes have equally many workers."""
    nodes = current().placement.cluster.worker_nodes
    return len({nodes.count(node) for node in nodes}) == 1


def _yes() -> bool:
    """True."""
    return True


def _no(*_: object, **__: object) -> bool:
    """False."""
    return False


mpi_built = mpi_enabled = mpi_threads_supported = _yes
gloo_built = gloo_enabled = nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = _no
