"""An optimizer node's machine: the same bits as in one place, whatever the order in which things end."""

import numpy as np
import pytest

from coarse.luwu.store.layout import PagedModel, PagedTensor, PagedUnit
from coarse.luwu.store.optimizer import Rules
from coarse.protocol.dtypes import DType, narrowed
from tests.unit.luwu.store.memory_disk import MemoryDisk
from tests.unit.luwu.store.node import Node, Training


def small_model(pulled: DType = DType.FLOAT32, num_states: int = 2) -> PagedModel:
    return PagedModel(
        units=(
            PagedUnit("embedding", (PagedTensor("e", (20, 10)),)),
            PagedUnit("block0", (PagedTensor("b0.w", (30, 11)), PagedTensor("b0.b", (11,)))),
            PagedUnit("block1", (PagedTensor("b1.w", (30, 11)), PagedTensor("b1.b", (11,)), PagedTensor("b1.s", ()))),
            PagedUnit("base", (PagedTensor("frozen", (150,), False),)),
            PagedUnit("head", (PagedTensor("h.w", (64,)), PagedTensor("h.f", (70,), False))),
        ),
        pulled=pulled,
        num_states=num_states,
        chunk_elements=128,
    )


def check(training: Training, node: Node, upto: int | None = None) -> None:
    """What lies on the disk is the reference, to the bit."""
    wanted = training.reference(upto)
    for unit, version in node.optimizer.versions().items():
        for found, right in zip(node.arrays(unit, version), wanted[unit], strict=True):
            np.testing.assert_array_equal(found.view(np.uint32), right.view(np.uint32), f"unit {unit}")


RULES = {
    "at the step": (Rules(), {}),
    "every third committed": (Rules(commit_every=3), {}),
    "in backward": (Rules(in_backward=True), {"in_backward": True}),
    "speculative": (
        Rules(in_backward=True, is_speculative=True, wants_squares=True), {"in_backward": True, "max_norm": 20.0},
    ),
    "clipped": (Rules(wants_squares=True), {"max_norm": 20.0}),
    "clipped, not foreseen": (Rules(), {"max_norm": 20.0}),
    "accumulated": (Rules(commit_every=2), {"num_passes": 3}),
    "accumulated in backward": (Rules(in_backward=True, num_passes=2), {"num_passes": 2, "in_backward": True}),
}  # fmt: skip


@pytest.mark.parametrize("in_memory", [(), (0, 1, 2, 3, 4), (1, 4)], ids=["on disk", "in memory", "some"])
@pytest.mark.parametrize("name", RULES)
def test_training_gives_the_bits_of_one_place(name: str, in_memory: tuple[int, ...]) -> None:
    rules, options = RULES[name]
    for seed in range(4):
        training = Training(small_model(), num_workers=1 + seed % 3, num_steps=4, seed=seed, **options)
        node = Node(training.model, rules, training.scripts(), MemoryDisk(), seed=seed, in_memory=in_memory)
        assert node.run()
        assert node.optimizer.is_quiet
        check(training, node)
        assert [commit.step for commit in node.commits] == [0, *range(rules.commit_every, 5, rules.commit_every)]


def test_each_pull_has_the_parameters_of_its_step() -> None:
    for pulled in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16):
        training = Training(small_model(pulled), num_workers=2, num_steps=3)
        node = Node(training.model, Rules(), training.scripts(), MemoryDisk(), seed=3)
        assert node.run()
        for worker in node.workers:
            per_step = 2 * len(training.model.units)
            for number, (unit, values) in enumerate(worker.pulled):
                right = training.reference(number // per_step)[unit][0]
                wanted = right if pulled is DType.FLOAT32 else narrowed(right, pulled)
                np.testing.assert_array_equal(values.view(np.uint8), wanted.view(np.uint8))


def test_a_parameter_without_gradients_anywhere_is_left_alone_and_so_is_its_count_of_steps() -> None:
    def absent(worker: int, step: int, unit: int, tensor: int) -> bool:
        if unit == 1 and tensor == 1:
            return True  # nobody ever has one
        if unit == 2:
            return worker != step % 2  # one of the two has one
        return unit == 4 and step == 2  # nobody in step 2

    for options in ({}, {"in_backward": True}):
        training = Training(small_model(), num_workers=2, num_steps=4, absent=absent, **options)
        node = Node(training.model, Rules(**options), training.scripts(), MemoryDisk(), seed=5)
        assert node.run()
        check(training, node)
        versions = node.optimizer.versions()
        assert versions[1].steps == (4, 0)
        assert versions[4].steps == (3, 0)


def test_units_that_a_backward_does_not_reach_keep_their_version() -> None:
    training = Training(small_model(), num_workers=2, num_steps=3, unused=lambda step, unit: unit == 2 and step > 1)
    node = Node(training.model, Rules(), training.scripts(), MemoryDisk(), seed=6)
    assert node.run()
    check(training, node)
    assert node.optimizer.versions()[2].version == 1


def test_discarded_gradients_leave_no_trace() -> None:
    for options in ({}, {"in_backward": True}, {"num_passes": 2}):
        training = Training(small_model(), num_workers=2, num_steps=4, discards=(1, 3), **options)
        rules = Rules(in_backward=bool(options.get("in_backward")))
        node = Node(training.model, rules, training.scripts(), MemoryDisk(), seed=7)
        assert node.run()
        assert node.dropped == 2
        check(training, node)


def test_groups_have_settings_of_their_own_within_a_unit() -> None:
    settings = ({"lr": 0.1, "weight_decay": 0.1}, {"lr": 0.01, "weight_decay": 0.0})
    groups = [[0], [0, 1], [0, 1, 1], [0], [1, 0]]
    training = Training(small_model(), 2, 3, settings=settings, groups=groups)
    node = Node(training.model, Rules(), training.scripts(), MemoryDisk(), groups=groups)
    assert node.run()
    check(training, node)


@pytest.mark.parametrize(("optimizer", "num_states"), [("SGD", 0), ("SGD", 1), ("Adam", 2)])
def test_other_optimizers_keep_other_states(optimizer: str, num_states: int) -> None:
    settings = ({"lr": 0.05, "momentum": 0.9 * num_states} if optimizer == "SGD" else {"lr": 0.05},)
    training = Training(small_model(num_states=num_states), 2, 3, settings=settings, optimizer=optimizer)
    node = Node(training.model, Rules(), training.scripts(), MemoryDisk(), optimizer=optimizer)
    assert node.run()
    check(training, node)


def test_one_buffer_and_a_window_of_one_are_enough() -> None:
    for name, (rules, options) in RULES.items():
        training = Training(small_model(), num_workers=2, num_steps=3, **options)
        node = Node(training.model, rules, training.scripts(), MemoryDisk(), num_buffers=1, num_window=1, seed=9)
        assert node.run(), name
        check(training, node)
