"""A model that is served: what workers pull is right in every step, whatever the order in which records come."""

import pytest

from coarse.luwu.store.declaration import Declaration
from coarse.luwu.store.layout import PagedModel, PagedTensor, PagedUnit
from coarse.protocol.dtypes import DType
from tests.unit.luwu.device.loop import Loop


def declared(num_workers: int, *, pulled: DType = DType.FLOAT32, sum: str = "float32") -> Declaration:
    model = PagedModel(
        units=(
            PagedUnit("a", (PagedTensor("a.w", (500,)), PagedTensor("a.b", (3,)))),
            PagedUnit("b", (PagedTensor("b.w", (130,)),)),
            PagedUnit("c", (PagedTensor("c.w", (64,), False),)),
        ),
        pulled=pulled,
        chunk_elements=128,
    )
    groups = ({"lr": 0.1, "weight_decay": 0.0},)
    return Declaration(
        model=model, optimizer="AdamW", groups=groups, group_of=((0, 0), (0,), (0,)), num_workers=num_workers,
        storage=("/disk",), gradients=pulled, sum=sum,
    )  # fmt: skip


@pytest.mark.parametrize("is_born", [True, False], ids=["gradients born in device memory", "gradients staged"])
@pytest.mark.parametrize("pulled", [DType.FLOAT32, DType.BFLOAT16])
def test_every_pull_has_its_steps_values(is_born: bool, pulled: DType) -> None:
    for seed in range(12):
        num_workers = 1 + seed % 3
        declaration = declared(num_workers, pulled=pulled)
        loop = Loop(declaration, seed, is_born=is_born, num_window=1 + seed % 4, num_staging=1 + seed % 3)
        loop.run([loop.program(worker, 3) for worker in range(num_workers)])
        assert loop.served.is_quiet


def test_sums_as_integers_serve_too() -> None:
    loop = Loop(declared(3, sum="int64"), 1, is_born=True, num_window=3, num_staging=2)
    loop.run([loop.program(worker, 2) for worker in range(3)])
