"""What travels with a sum of gradients follows from the program; which values differ between ranks, in words."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from tf_strategy.agreement.variables import _digest, differing, listed, told
from tf_strategy.extended import CoarseExtended
from tf_strategy.sums.operations import Operations


class OneWorker:
    """Rounds of a job of one, which combines nothing."""

    num_workers, rank, bucket_bytes = 1, 0, 1 << 20

    def broadcast(self, array, what):
        return array


class Alone(tf.distribute.Strategy):
    """A strategy of ours without a job."""

    _collective_key_base = 0

    def __init__(self) -> None:
        super().__init__(CoarseExtended(self, "CPU:0", Operations(OneWorker())))


class Optimizer:
    """Whoever asks for sums."""


STRATEGY = Alone()
EACH_LENGTH = (2, 3, 2, 1)
"""A function is traced for the first, for the second, not for the third, and for the last."""


@pytest.fixture
def states() -> list[tf.Variable]:
    """Three that layers may write."""
    with STRATEGY.scope():
        return [tf.Variable(float(number), trainable=False) for number in range(3)]


@pytest.fixture
def optimizer() -> Optimizer:
    return Optimizer()


def travelling(optimizer: Optimizer, states: list[tf.Variable]) -> list[int]:
    """The numbers of those that would travel with a sum here."""
    locals_of = [state.values[0] for state in states]
    found = STRATEGY.extended.layer_states.written(optimizer)
    return [next(number for number, local in enumerate(locals_of) if local is one) for one in found]


def found_by(step, *, outer=lambda replica: replica) -> list[list[int]]:
    """What `step` finds in each of its traces, in a function that runs it for each length."""
    seen: list[list[int]] = []
    function = tf.function(outer(lambda x: STRATEGY.run(lambda y: seen.append(step(y)), (x,))), autograph=False)
    for length in EACH_LENGTH:
        function(tf.ones(length))
    assert len(seen) >= 3
    return seen


def test_what_is_written_before_travels_in_every_trace_and_nothing_else_does(states, optimizer):
    def step(x):
        states[0].assign_add(tf.reduce_sum(x) * states[1])
        found = travelling(optimizer, states)
        states[1].assign(states[0])  # an average of weights, for instance
        states[2].assign(1.0)
        return found

    assert found_by(step) == [[0]] * 3


def test_what_functions_write_that_were_traced_before_travels_too(states, optimizer):
    @tf.function(autograph=False)
    def forward(factor):
        states[2].assign_add(factor * states[1])

    def step(x):
        forward(2.0)
        return travelling(optimizer, states)

    STRATEGY.run(forward, (2.0,))
    assert found_by(step) == [[2]] * 3


def test_what_a_backward_pass_leaves_of_a_function_is_what_it_writes(states, optimizer):
    with STRATEGY.scope():
        weight = tf.Variable(3.0)

    @tf.function(autograph=False)
    def forward(x):
        states[0].assign_add(1.0)
        return tf.reduce_sum(x) * weight * states[1]

    def step(x):
        with tf.GradientTape() as tape:
            loss = forward(x)
        tape.gradient(loss, weight.values[0])
        return travelling(optimizer, states)

    assert found_by(step) == [[0]] * 3


def test_writes_in_loops_and_branches_travel(states, optimizer):
    def step(x):
        def turn(number):
            tf.cond(number > 1, lambda: states[0].assign(1.0) + 0.0, lambda: states[1] + 0.0)
            found.append(travelling(optimizer, states))
            states[1].assign(2.0)
            return number + 1

        found = []
        tf.while_loop(lambda number: number < 2, turn, [tf.constant(0)])
        return [*found[0], *travelling(optimizer, states)]

    assert found_by(step) == [[0, 0, 1]] * 3


def test_a_function_that_is_traced_anew_within_another_sends_what_it_sent_first(states, optimizer):
    found = []

    @tf.function(autograph=False)
    def sums(x):
        states[1].assign_add(tf.reduce_sum(x))
        found.append(travelling(optimizer, states))

    def step(x):
        states[0].assign_add(1.0)
        sums(x)
        states[2].assign_add(1.0)
        sums(tf.concat([x, x, x], 0))  # on a rank with equal lengths the first trace serves for both

    found_by(step)
    assert found == [[0, 1]] * len(found)
    assert len(found) > len(set(EACH_LENGTH))


def test_optimizers_that_share_a_function_have_states_of_their_own(states):
    optimizers, found = [Optimizer(), Optimizer()], []

    @tf.function(autograph=False)
    def sums(which):
        found.append(travelling(optimizers[which], states))

    for number in (0, 1):

        @tf.function(autograph=False)
        def step(number=number):
            states[number].assign(1.0)
            sums(number)

        STRATEGY.run(step)
    assert [one for one in found if one] == [[0], [1]]


def test_what_an_optimizer_writes_stays_where_it_is(states, optimizer):
    def step(x):
        with STRATEGY.extended.summed_gradients():
            states[0].assign_add(tf.reduce_sum(x))
        return travelling(optimizer, states)

    assert found_by(step) == [[]] * 3


def test_eagerly_all_that_was_written_since_the_last_sum_travels(states, optimizer):
    def step():
        states[1].assign(1.0)
        found = travelling(optimizer, states)
        states[2].assign(1.0)
        return found

    assert [STRATEGY.run(step) for _ in range(3)] == [[1], [1, 2], [1, 2]]
    assert travelling(optimizer, states) == [2]


def test_states_functions_and_optimizers_that_are_gone_are_forgotten():
    def trains_a_while():
        with STRATEGY.scope():
            ours, asking = [tf.Variable(tf.zeros(3), trainable=False)], Optimizer()

        @tf.function(autograph=False)
        def step():
            ours[0].assign(tf.ones(3))
            travelling(asking, ours)

        STRATEGY.run(step)
        return sizes()

    def sizes():
        return len(layer_states._in_functions), len(layer_states._around)

    layer_states = STRATEGY.extended.layer_states
    gc.collect()
    before = sizes()
    assert trains_a_while() == (before[0] + 1, before[1] + 1)
    gc.collect()
    assert sizes() == before


def test_variables_that_differ_on_any_rank_are_found_and_the_others_are_not():
    assert differing([{1: 5, 2: 6, 9: 7}, {1: 5, 2: 6, 9: 7}]) == []
    assert differing([{9: 7, 1: 5, 2: 6}, {1: 5, 2: 6, 9: 7}, {1: 4, 2: 6, 9: 8}]) == [1, 9]


def test_a_variable_that_one_rank_alone_still_has_is_not_compared():
    assert differing([{1: 5, 2: 6}, {2: 6}]) == []


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["kernel"], "'kernel'"),
        (["kernel", "bias", "last"], "'kernel', 'bias', 'last'"),
        (["a", "b", "c", "d", "e"], "'a', 'b', 'c' and 2 more"),
    ],
)
def test_three_names_are_listed_and_more_are_counted(names, text):
    assert listed(names) == text
    assert f"the values of {text} differ between ranks" in told(names)


@pytest.mark.parametrize("array", [np.float32(1), np.zeros((0, 3)), np.ones((3, 4)).T, np.arange(4, dtype=np.int64)])
def test_a_digest_is_that_of_an_array_s_values(array):
    assert _digest(np.asarray(array)) == _digest(np.array(array))
    assert _digest(np.ones(3)) != _digest(np.array([1.0, 1.0, 1.0 + 1e-15]))
