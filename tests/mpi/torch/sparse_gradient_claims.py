"""DistributedOptimizer over sparse gradients: claims that each rank checks.

Values are small whole numbers, so that sums are exact in whatever order they are added.
"""

import torch
from torch import nn

import coarse
import coarse.torch as ct
from coarse.session import current
from tests.mpi.torch.drawn import RANK, SIZE
from tests.support.claims import raises, waiting_at_most

ROWS, WIDTH = 500, 4
EVERYONE = range(SIZE)


class Tagger(nn.Module):
    """A table beside a layer, so that some gradients are sparse and others are not."""

    def __init__(self, dtype: torch.dtype = torch.float32, *, is_sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=is_sparse, dtype=dtype)
        self.layer = nn.Linear(WIDTH, 2, bias=False, dtype=dtype)
        with torch.no_grad():
            self.table.weight.copy_(torch.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) % 5)
            self.layer.weight.copy_(torch.arange(2 * WIDTH).reshape(2, WIDTH) % 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(words)).sum()


def words(step: int, rank: int = RANK) -> torch.Tensor:
    """Rows that a rank reads: some twice, some that others read too."""
    return torch.tensor([step, rank, rank, 7, 10 * rank + step])


def distributed(model: nn.Module, **options: object) -> ct.DistributedOptimizer:
    return ct.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.5), model.named_parameters(), **options)


def require_summed(model: Tagger, batches: list[torch.Tensor], scale: float = 1.0) -> None:
    """`.grad` of the table is sparse, and all gradients are what a dense copy gets from all of these batches."""
    alone = Tagger(model.table.weight.dtype, is_sparse=False)
    alone.load_state_dict(model.state_dict())
    for batch in batches:
        alone(batch).backward()
    assert model.table.weight.grad.is_sparse
    for parameter, reference in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.to_dense(), reference.grad * scale, rtol=1e-6, atol=0.0)


def go_on(model: Tagger, optimizer: ct.DistributedOptimizer) -> None:
    """Two steps of an optimizer that sums give the right sums; then it is closed."""
    for step in range(2):
        optimizer.zero_grad()
        model(words(step)).backward()
        optimizer.synchronize()
        require_summed(model, [words(step, rank) for rank in EVERYONE])
    optimizer.close()


def sparse_gradients_stay_sparse_and_are_those_of_all_ranks() -> None:
    for op, scale in ((ct.Sum, 1.0), (ct.Average, 1 / SIZE)):
        for in_device_memory in (True, False):
            model = Tagger()
            optimizer = distributed(model, op=op, gradients_in_device_memory=in_device_memory)
            for step in range(4):
                optimizer.zero_grad(set_to_none=step != 2)
                model(words(step)).backward()
                optimizer.synchronize()
                require_summed(model, [words(step, rank) for rank in EVERYONE], scale)
                assert model.table.weight.grad._nnz() <= 4 * SIZE
                optimizer.step()
                ct.broadcast_parameters(model.state_dict())  # division may round, and the reference is alone
            optimizer.close()
            model.zero_grad()
            model(words(0)).backward()  # nothing watches any more
            require_summed(model, [words(0)])


def sparse_adam_trains_as_in_one_process() -> None:
    def trained(*, is_shared: bool, **options: object) -> torch.Tensor:
        table = Tagger().table
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.125)
        if is_shared:
            optimizer = ct.DistributedOptimizer(optimizer, table.named_parameters(), op=ct.Sum, **options)
        for step in range(5):
            optimizer.zero_grad()
            for rank in (RANK,) if is_shared else EVERYONE:
                table(words(step, rank)).sum().backward()
            optimizer.step()
        if is_shared:
            optimizer.close()
        return table.weight.detach()

    alone = trained(is_shared=False)
    assert torch.equal(trained(is_shared=True), alone)
    assert torch.equal(trained(is_shared=True, sparse_as_dense=True), alone)


def a_table_travels_once_and_then_what_is_in_its_gradient() -> None:
    def pushed() -> int:
        keys = coarse.statistics()["keys"]
        return sum(counts["bytes"] for name, counts in keys.items() if name.startswith("tables/"))

    model = Tagger()
    optimizer = distributed(model, prefix="tables/")
    found = []
    for step in range(3):
        before = pushed()
        model(words(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(pushed() - before)
    table_bytes = ROWS * WIDTH * 4
    assert found[0] >= table_bytes, found
    assert max(found[1:]) < table_bytes / 8, found
    optimizer.close()


def ranks_without_a_sparse_gradient_count_as_zero() -> None:
    model = Tagger()
    optimizer = distributed(model, op=ct.Sum)
    last = SIZE - 1
    for step in range(3):
        optimizer.zero_grad()
        if last == RANK:
            model(words(step)).backward()
        optimizer.synchronize()
        require_summed(model, [words(step, last)])
    optimizer.zero_grad()
    model.layer(torch.ones(WIDTH)).sum().backward()
    optimizer.synchronize()
    assert model.table.weight.grad is None
    assert torch.equal(model.layer.weight.grad, torch.full((2, WIDTH), float(SIZE)))
    optimizer.close()


def passes_accumulate_and_a_second_gradient_is_added_once() -> None:
    for op, scale in ((ct.Sum, 1.0), (ct.Average, 1 / SIZE)):
        model = Tagger()
        optimizer = distributed(model, op=op, backward_passes_per_step=2)
        for step in range(3):
            optimizer.zero_grad()
            for number in range(2):
                model(words(step + number)).backward()
            optimizer.synchronize()
            batches = [words(step + number, rank) for number in range(2) for rank in EVERYONE]
            require_summed(model, batches, scale)
            for number in range(2):  # after the result has come
                model(words(number)).backward()
            optimizer.synchronize()
            require_summed(model, batches + [words(number, rank) for number in range(2) for rank in EVERYONE], scale)
        with optimizer.no_sync():
            optimizer.zero_grad()
            model(words(1)).backward()
        for number in range(2):
            model(words(number)).backward()
        optimizer.synchronize()
        require_summed(model, [words(n, rank) for rank in EVERYONE for n in (1, 0, 1)], scale)
        optimizer.close()


def half_types_are_gathered_too() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model = Tagger(dtype)
        go_on(model, distributed(model, op=ct.Sum))


def a_gradient_may_become_sparse_and_dense_again() -> None:
    model = Tagger(is_sparse=False)
    optimizer = distributed(model, op=ct.Sum)
    for step in range(6):
        model.table.sparse = 1 < step < 4
        optimizer.zero_grad()
        model(words(step)).backward()
        optimizer.synchronize()
        if step > 1:
            require_summed(model, [words(step, rank) for rank in EVERYONE])
    optimizer.close()


def a_gradient_that_is_sparse_on_some_ranks_alone_is_named() -> None:
    if SIZE == 1:
        return
    model = Tagger(is_sparse=RANK == 0)
    optimizer = distributed(model, op=ct.Sum)
    model(words(0)).backward()
    with raises(coarse.MismatchError, "'table.weight' differs between ranks", "sparse in 1 dimensions, dense"):
        optimizer.step()
    model.table.sparse = True
    go_on(model, optimizer)


def a_step_that_stalled_may_be_tried_again_with_sparse_gradients() -> None:
    if SIZE == 1:
        return
    model = Tagger()
    optimizer = distributed(model, op=ct.Sum)
    for step in range(3):
        optimizer.zero_grad()
        model(words(step)).backward()
        if RANK == 0:
            with waiting_at_most(0.05), raises(coarse.StallError):
                optimizer.step()
        ct.allreduce(torch.ones(1), name="stalled")
        optimizer.synchronize()
        require_summed(model, [words(step, rank) for rank in EVERYONE])
    optimizer.close()


def a_rank_that_has_joined_cannot_be_gathered_from() -> None:
    if SIZE == 1 or current().config.mode == "allreduce":
        return  # where nobody can join
    model = Tagger()
    optimizer = distributed(model, op=ct.Sum)
    for step in range(2):
        model(words(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    if RANK:
        model(words(2)).backward()
        with raises(coarse.JoinedError, "ranks [0] have called join()", "sparse_as_dense"):
            optimizer.step()
    ct.join()
    go_on(model, optimizer)


def a_name_may_be_used_by_another_optimizer_after_a_rank_that_never_stepped() -> None:
    if SIZE == 1 or current().config.mode == "allreduce":
        return
    model = Tagger()
    optimizer = distributed(model, prefix="again/")
    if RANK:
        model(words(0)).backward()
        with raises(coarse.JoinedError, "ranks [0]"):
            optimizer.step()
    ct.join()
    optimizer.close()
    if RANK == 0:
        optimizer.close()  # once more
    model = Tagger()
    go_on(model, distributed(model, prefix="again/", op=ct.Sum))


def a_gradient_without_values_is_summed_too() -> None:
    model = Tagger()
    optimizer = distributed(model, op=ct.Sum)
    for step in range(4):
        optimizer.zero_grad(set_to_none=False)
        if step == 2:
            model.layer(torch.ones(WIDTH)).sum().backward()
        else:
            model(words(step)).backward()
        optimizer.synchronize()
        if step == 2:
            assert model.table.weight.grad._nnz() == 0
        else:
            require_summed(model, [words(step, rank) for rank in EVERYONE])
    empty = torch.sparse_coo_tensor(torch.empty(1, 0), torch.empty(0), (3,), check_invariants=True)
    assert ct.sparse_allreduce_async(empty, "empty", ct.Sum).wait().to_dense().tolist() == [0.0] * 3
    scalar = torch.sparse_coo_tensor(torch.empty(0, 1), torch.ones(1), (), check_invariants=True)
    assert ct.sparse_allreduce_async(scalar, "scalar", ct.Sum).wait().to_dense() == SIZE
    go_on(model, optimizer)


def parameters_may_be_frozen_before_the_first_sparse_gradient() -> None:
    model = Tagger()
    optimizer = distributed(model, op=ct.Sum)
    model.layer.weight.requires_grad_(False)
    for step in range(2):
        optimizer.zero_grad()
        model(words(step)).backward()
        optimizer.synchronize()
    model.layer.weight.requires_grad_(True)
    go_on(model, optimizer)


def a_gradient_that_was_disturbed_on_one_rank_leaves_all_ranks_in_step() -> None:
    model = Tagger()
    optimizer = distributed(model, op=ct.Sum)
    model(words(0)).backward()
    optimizer._exchange.start_all()
    if RANK == 0:
        model.layer.weight.grad.mul_(1.0)
        with raises(coarse.InFlightError, "'layer.weight'"):
            optimizer.step()
    else:
        optimizer.step()
    ct.broadcast_parameters(model.state_dict(), root_rank=SIZE - 1)  # rank 0 did not step
    go_on(model, optimizer)


def an_average_of_half_types_is_divided_before_it_is_rounded() -> None:
    model = Tagger(torch.float16)
    optimizer = distributed(model)
    (model.table(torch.tensor([3])).sum() * 40000).backward()
    optimizer.synchronize()
    assert model.table.weight.grad.to_dense()[3].tolist() == [40000.0] * WIDTH
    optimizer.close()


def a_gradient_that_its_user_makes_dense_counts_as_it_is() -> None:
    model = Tagger()
    optimizer = distributed(model, op=ct.Sum)
    for step in range(4):
        optimizer.zero_grad()
        model(words(step)).backward()
        if step in (1, 2):
            model.table.weight.grad = model.table.weight.grad.to_dense()
        optimizer.synchronize()
        require_summed(model, [words(step, rank) for rank in EVERYONE])
    optimizer.close()
    small = nn.Embedding(20, WIDTH, sparse=True)
    unused = nn.Parameter(torch.zeros(3))  # without its gradient their bucket waits for synchronize()
    named = [("small", small.weight), ("unused", unused)]
    optimizer = ct.DistributedOptimizer(torch.optim.SGD([p for _, p in named], 0.5), named, op=ct.Sum)
    small(torch.tensor([RANK])).sum().backward()
    small.weight.grad = small.weight.grad.to_dense()
    optimizer.synchronize()
    assert small.weight.grad[:, 0].tolist() == [float(row < SIZE) for row in range(20)]
    optimizer.close()


def a_stall_leaves_no_rank_a_step_ahead() -> None:
    """A rank without a gradient zeroes what it has waited for in vain, and goes on."""
    if SIZE == 1:
        return
    table = nn.Embedding(ROWS, WIDTH, sparse=True)
    optimizer = ct.DistributedOptimizer(torch.optim.SGD(table.parameters(), 0.0), [("e", table.weight)], op=ct.Sum)
    for step in range(5):
        optimizer.zero_grad()
        if RANK or step != 3:
            table(torch.tensor([step])).sum().backward()
        if step == 3 and RANK == 0:
            with waiting_at_most(0.05), raises(coarse.StallError):
                optimizer.step()
            ct.allreduce_async_(torch.ones(1), name="late").wait()
            continue
        if step == 3:
            ct.allreduce_async_(torch.ones(1), name="late").wait()
        optimizer.step()
        assert table.weight.grad.coalesce().indices().tolist() == [[step]]
    optimizer.close()


def a_crossed_barrier_refuses_sparse_gradients_by_name() -> None:
    model = Tagger()
    optimizer = ct.CrossBarrier(model, torch.optim.SGD(model.parameters(), 0.5))
    with raises(TypeError, "'table.weight'", "sparse_as_dense"):
        model(words(0)).backward()
    optimizer.close()


CLAIMS = [
    sparse_gradients_stay_sparse_and_are_those_of_all_ranks,
    sparse_adam_trains_as_in_one_process,
    a_table_travels_once_and_then_what_is_in_its_gradient,
    ranks_without_a_sparse_gradient_count_as_zero,
    passes_accumulate_and_a_second_gradient_is_added_once,
    half_types_are_gathered_too,
    a_gradient_may_become_sparse_and_dense_again,
    a_gradient_that_is_sparse_on_some_ranks_alone_is_named,
    a_step_that_stalled_may_be_tried_again_with_sparse_gradients,
    a_rank_that_has_joined_cannot_be_gathered_from,
    a_name_may_be_used_by_another_optimizer_after_a_rank_that_never_stepped,
    a_gradient_without_values_is_summed_too,
    parameters_may_be_frozen_before_the_first_sparse_gradient,
    a_gradient_that_was_disturbed_on_one_rank_leaves_all_ranks_in_step,
    an_average_of_half_types_is_divided_before_it_is_rounded,
    a_gradient_that_its_user_makes_dense_counts_as_it_is,
    a_stall_leaves_no_rank_a_step_ahead,
    a_crossed_barrier_refuses_sparse_gradients_by_name,
]
