"""The sum of sparse tensors, whose ranks may have different numbers of values."""

import numpy as np
import torch

from coarse.errors import MismatchError
from coarse.torch.c10d.reduction import Operation
from coarse.torch.c10d.staging import read
from coarse.torch.c10d.statement import CallKind, element_number
from coarse.torch.c10d.steps import GroupSteps, Steps


def sum_sparse(group: GroupSteps, tensor: torch.Tensor, operation: Operation) -> Steps:
    """Make a sparse COO tensor the sum of all ranks' ones; each rank gathers all indices and values.

    Raises:
        TypeError: another operation, or a layout other than COO.
        MismatchError: ranks whose tensors differ in shape.
    """
    if operation is not Operation.SUM or tensor.layout is not torch.sparse_coo:
        raise TypeError(
            f"{operation.name} of tensors of {tensor.layout} cannot be computed; sparse COO tensors can be summed"
        )
    own = tensor.detach().coalesce()
    shape = torch.tensor([own.sparse_dim(), own.dense_dim(), *own.shape, own._nnz()], dtype=torch.int64)
    return _sum(group, tensor, own, shape.numpy())


def _sum(group: GroupSteps, tensor: torch.Tensor, own: torch.Tensor, shape: np.ndarray) -> Steps:
    shapes = np.empty((group.size, len(shape)), np.int64)
    number = element_number("int64")
    yield from group.all_gather(_flat(shapes), _flat(shape), number, CallKind.SPARSE_ALL_REDUCE)
    if (shapes[:, :-1] != shapes[0, :-1]).any():
        raise MismatchError(f"sparse tensors of different shapes cannot be summed: {shapes[:, 2:-1].tolist()}")
    most = int(shapes[:, -1].max())
    indices = own.indices().new_zeros((group.size, own.sparse_dim(), most))
    values = own.values().new_zeros((group.size, most, *own.shape[own.sparse_dim() :]))
    indices[group.rank, :, : own._nnz()] = own.indices()
    values[group.rank, : own._nnz()] = own.values()
    for gathered in (indices, values):
        everything, mine = read(gathered), read(gathered[group.rank])
        yield from group.all_gather(everything, mine, -1, CallKind.SPARSE_ALL_REDUCE)
        gathered.copy_(torch.from_numpy(everything).view(gathered.dtype).view(gathered.shape))
    parts = [
        torch.sparse_coo_tensor(indices[rank, :, :nnz], values[rank, :nnz], own.shape, check_invariants=False)
        for rank, nnz in enumerate(int(row[-1]) for row in shapes)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    with torch.no_grad():
        tensor.copy_(total.coalesce())


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
