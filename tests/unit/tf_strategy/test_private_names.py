"""TensorFlow's and Keras' private names exist in the versions installed, and do what tf_strategy relies on.

`make test-versions` runs this under every version supported.
"""

import ast
import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_strategy import private_names
from tf_strategy.agreement.variables import FirstReplicaVariable
from tf_strategy.extended import CoarseExtended, CoarseReplicaContext, UnsupportedMethods
from tf_strategy.private_names import (
    MirroredExtended,
    ReduceOp,
    SyncOnReadVariable,
    cross_device_ops,
    distribute_lib,
    distribute_utils,
    input_lib,
    values,
)
from tf_strategy.sums.operations import CoarseCrossDeviceOps

SUBCLASSES = [
    (CoarseExtended, MirroredExtended),
    (UnsupportedMethods, MirroredExtended),
    (CoarseCrossDeviceOps, tf.distribute.CrossDeviceOps),
    (CoarseReplicaContext, tf.distribute.ReplicaContext),
    (FirstReplicaVariable, SyncOnReadVariable),
]
OVERRIDES = [
    (ours, theirs, name)
    for ours, theirs in SUBCLASSES
    for name in vars(ours)
    if hasattr(theirs, name) and not name.startswith("__") and name != "_abc_impl"
]
PARAMETERS = {
    MirroredExtended.__init__: ("container_strategy", "devices", "cross_device_ops"),
    cross_device_ops.simple_broadcast: ("value", "destinations", "always_mirrored"),
    distribute_lib.InputContext.__init__: ("num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync"),
    distribute_lib.ValueContext.__init__: ("replica_id_in_sync_group", "num_replicas_in_sync"),
    distribute_utils.is_mirrored: ("val",),
    distribute_utils.regroup: ("values", "wrap_class", "always_wrap"),
    distribute_utils.select_replica: ("replica_id", "structured"),
    input_lib.DistributedDataset.__init__: (
        *("input_workers", "strategy", "dataset", "num_replicas_in_sync", "input_context", "components"),
        *("element_spec", "enable_get_next_as_optional", "build", "options"),
    ),
    keras.random.SeedGenerator.next: ("ordered",),
    private_names.Generator._preprocess_key: ("key",),
    private_names.random_seed.get_seed: ("op_seed",),
    keras.optimizers.Optimizer.apply: ("grads", "trainable_variables"),
    keras.optimizers.Optimizer.apply_gradients: ("grads_and_vars",),
    keras.optimizers.LossScaleOptimizer.apply: ("grads", "trainable_variables"),
    private_names.get_read_write_resource_inputs: ("op",),
    values.DistributedVariable._update_replica: ("update_fn", "value"),
    SyncOnReadVariable.__init__: ("strategy", "values", "aggregation"),
}


def parameters(function: object) -> tuple[str, ...]:
    """The names that a function takes, `self` left out; those of a property are none."""
    if isinstance(function, property):
        return ()
    assert callable(function)
    return tuple(name for name in inspect.signature(function).parameters if name != "self")


@pytest.mark.parametrize("function", PARAMETERS, ids=lambda function: function.__qualname__)
def test_a_private_function_takes_the_parameters_that_it_is_given(function):
    given = PARAMETERS[function]
    assert tuple(name for name in parameters(function) if name in given) == given


@pytest.mark.parametrize(("ours", "theirs", "name"), OVERRIDES, ids=lambda value: getattr(value, "__name__", value))
def test_a_method_overrides_one_of_the_same_parameters(ours, theirs, name):
    mine, base = inspect.getattr_static(ours, name), inspect.getattr_static(theirs, name)
    assert isinstance(mine, property) == isinstance(base, property)
    assert parameters(mine) == parameters(base)


@pytest.mark.parametrize(("ours", "theirs"), SUBCLASSES, ids=lambda kind: kind.__name__)
def test_every_private_method_of_a_subclass_is_called_by_its_file_or_overrides_one(ours, theirs):
    own = {name for name in vars(ours) if name.startswith("_") and not name.startswith("__")}
    used = {node.attr for node in ast.walk(ast.parse(inspect.getsource(ours))) if isinstance(node, ast.Attribute)}
    assert not {name for name in own if not hasattr(theirs, name)} - used


def test_every_attribute_that_the_extended_uses_of_itself_exists(mirrored_strategy):
    tree = ast.parse(inspect.getsource(CoarseExtended))
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if ast.unparse(node.value) == "self" and isinstance(node.ctx, ast.Load)}
    set_here = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)} - {
        "experimental_enable_get_next_as_optional"
    }
    extended = mirrored_strategy.extended
    assert not {name for name in used - set_here if not hasattr(extended, name) and not hasattr(CoarseExtended, name)}
    assert extended.experimental_enable_get_next_as_optional is not None


def test_a_variable_of_the_strategy_is_mirrored_and_a_value_per_replica_is_not(mirrored_strategy):
    with mirrored_strategy.scope():
        variable = tf.Variable(1.0)
    one = tf.constant([1.0, 2.0])
    apart = private_names.per_replica({"x": one})["x"]
    assert private_names.is_mirrored(variable)
    assert private_names.has_replica_values(apart)
    assert not private_names.is_mirrored(apart)
    assert not private_names.has_replica_values(one)


@pytest.mark.parametrize("wrapped", [private_names.per_replica, lambda value: value])
def test_the_local_value_is_what_was_wrapped(wrapped):
    value = tf.constant([1.0, 2.0])
    assert private_names.local_value(wrapped(value)) is value


def test_a_replica_sees_its_own_of_nested_values_and_its_results_are_regrouped():
    value = tf.constant([1.0, 2.0])
    nested = {"x": (private_names.per_replica(value), 3)}
    assert private_names.of_replica(nested)["x"][0] is value
    assert private_names.of_replica(nested)["x"][1] == 3
    assert private_names.regrouped({"x": (value, None)})["x"][0] is value


def test_a_variable_is_known_by_its_strategy_whether_it_is_keras_or_tensorflow_s(mirrored_strategy):
    with mirrored_strategy.scope():
        ours = [tf.Variable(1.0), keras.Variable(1.0)]
    others = [tf.Variable(1.0), keras.Variable(1.0)]
    for extended, are_ours in ((type(mirrored_strategy.extended), True), (CoarseExtended, False)):
        assert [private_names.is_strategy_variable(variable, extended) for variable in ours] == [are_ours] * 2
        assert not any(private_names.is_strategy_variable(variable, extended) for variable in others)


def test_a_replica_that_assigns_a_variable_by_itself_is_noticed_once(mirrored_strategy):
    with mirrored_strategy.scope():
        variable = tf.Variable(1.0, trainable=False, aggregation=tf.VariableAggregation.NONE)
    (local,) = variable.values
    noted = []
    private_names.on_replica_write(variable, noted.append)
    mirrored_strategy.run(lambda: variable.assign_add(2.0))
    assert len(noted) == 1
    assert noted[0] is local
    assert float(local) == 3.0


def test_the_variables_of_a_function_within_another_are_those_used_so_far():
    first, second, third = (tf.Variable(float(number)) for number in range(3))
    seen = []

    @tf.function
    def inner():
        second.assign_add(1.0)
        seen.append(private_names.variables_of_traced_functions())

    @tf.function
    def outer():
        total = first + 1.0
        inner()
        return total + third

    outer()
    for variables in seen:
        assert {id(variable) for variable in variables} >= {id(first), id(second)} - {id(third)}
        assert id(third) not in {id(variable) for variable in variables}
    assert seen
    assert private_names.variables_of_traced_functions() == []


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_variables_of_no_strategy_that_a_step_writes_are_found_among_those_that_it_reads(
    mirrored_strategy, steps_per_execution
):
    found = []

    class Looked(keras.Model):
        def train_step(self, data):
            logs = super().train_step(data)
            found.append({variable.name for variable in private_names.strays_written()})
            return logs

    rows, constant = keras.Input((3,)), keras.layers.Normalization(mean=0.5, variance=2.0)
    strays = keras.layers.BatchNormalization(scale=False, center=False, name="stray")
    strays.build((None, 3))
    with mirrored_strategy.scope():
        hidden = keras.layers.BatchNormalization(name="ours")(strays(constant(rows)))
        model = Looked(rows, keras.layers.Dense(1)(hidden))
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    model.fit(np.ones((4, 3)), np.ones((4, 1)), batch_size=1, verbose=0)
    for written in found:
        assert written == {"stray/moving_mean:0", "stray/moving_variance:0"}
    assert private_names.strays_written() == []


def test_the_first_replica_is_given_the_initial_value_by_keyword(mirrored_strategy, monkeypatch):
    seen = []
    extended = mirrored_strategy.extended
    theirs = extended._get_variable_creator_initial_value

    def noted(replica_id, device, primary_var, **kwargs):
        seen.append((replica_id, kwargs["name"], "initial_value" in kwargs, kwargs.get("dtype")))
        return theirs(replica_id, device, primary_var, **kwargs)

    monkeypatch.setattr(extended, "_get_variable_creator_initial_value", noted)
    with mirrored_strategy.scope():
        tf.Variable(1.0, name="weight", dtype=tf.float32)
    assert seen == [(0, "weight", True, tf.float32)]


def test_an_initial_value_may_be_a_function():
    assert private_names.initial_tensor(lambda: [1, 2], tf.float32).dtype == tf.float32


def test_the_value_of_a_checkpoint_stands_for_itself():
    wrapped = private_names.CheckpointInitialValue.__new__(private_names.CheckpointInitialValue)
    wrapped.wrapped_value = tf.constant(3.0)
    assert float(private_names.initial_tensor(lambda: wrapped, tf.float32)) == 3.0


def test_workers_read_disjoint_parts_of_global_batches_that_are_all_of_it(mirrored_strategy):
    workers = mirrored_strategy.extended._input_workers
    numbers = tf.data.Dataset.range(12).batch(6)
    parts = [private_names.auto_sharded(numbers, workers, mirrored_strategy, worker, 2) for worker in range(2)]
    batches = [[batch.numpy() for batch in part] for part in parts]
    assert [len(batch) for part in batches for batch in part] == [3] * 4
    assert sorted(np.concatenate([batch for part in batches for batch in part])) == list(range(12))


def test_a_worker_s_own_dataset_is_iterated_as_it_is(mirrored_strategy):
    workers = mirrored_strategy.extended._input_workers
    part = tf.data.Dataset.range(5).batch(2)
    whole = private_names.distributed(part, lambda _: part, workers, mirrored_strategy, 3)
    assert isinstance(whole, tf.distribute.DistributedDataset)
    assert int(whole.cardinality) == 3
    assert [private_names.local_value(batch).numpy().tolist() for batch in whole] == [[0, 1], [2, 3], [4]]


def test_the_innermost_function_is_the_same_in_each_of_its_traces():
    seen = []
    inner = tf.function(lambda x: seen.append(private_names.innermost_function()) or x, autograph=False)
    outer = tf.function(lambda x: inner(x) + inner(x[:1]), autograph=False)
    outer(tf.ones(2))
    outer(tf.ones(3))
    assert len(seen) >= 3
    assert {id(function) for function in seen} == {id(inner)}
    assert private_names.innermost_function() is None


@pytest.mark.parametrize("jit_compile", [True, False, None])
def test_a_function_that_is_being_traced_is_known_by_its_compiler(jit_compile):
    seen = []

    def train_step():
        seen.append(private_names.jit_compiled_function())
        return tf.constant(1.0)

    tf.function(train_step, jit_compile=jit_compile).get_concrete_function()
    tf.function(lambda: tf.function(train_step, jit_compile=jit_compile)())()
    assert seen == [None if not jit_compile else "train_step"] * len(seen)
    assert seen


@pytest.mark.parametrize("method", ["reduce", "batch_reduce"])
def test_one_worker_s_values_are_still_reduced_by_us(method, monkeypatch):
    asked = []
    alone = type("Alone", (), {"num_workers": 1, "rank": 0, "reduce": lambda self, op, tensors: tensors})
    ops = CoarseCrossDeviceOps(alone())
    monkeypatch.setattr(ops, "_combined", lambda op, tensors: asked.append(op) or tensors)
    value = private_names.per_replica(tf.constant([1.0]))
    if method == "reduce":
        ops.reduce(ReduceOp.SUM, value, "CPU:0")
    else:
        ops.batch_reduce(ReduceOp.SUM, [(value, "CPU:0")])
    assert asked == [ReduceOp.SUM]


def test_values_are_of_the_classes_that_keras_looks_for():
    assert issubclass(values.PerReplica, tf.distribute.DistributedValues)
    assert issubclass(values.Mirrored, tf.distribute.DistributedValues)


def test_operations_ask_for_their_seeds_where_they_are_replaced(monkeypatch):
    monkeypatch.setattr(private_names.random_seed, "get_seed", lambda op_seed: (3, 4))
    first, again = (tf.function(lambda: tf.random.normal([3]))() for _ in range(2))
    assert np.array_equal(first, again)


NOTHING = tf.data.Dataset.range(4)
COUNT = tf.Variable(0)
NOT_REPEATED = {
    "elements come from a generator": lambda: tf.data.Dataset.from_generator(
        lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32)
    ),
    "calls functions of Python's": lambda: NOTHING.map(lambda n: tf.numpy_function(lambda m: m, [n], tf.int64)),
    r"stateful random operations \(RandomUniform\)": lambda: NOTHING.map(lambda _: tf.random.uniform([])),
    "writes variables": lambda: NOTHING.map(lambda _: COUNT.assign_add(1)),
    "deterministic=False": lambda: NOTHING.map(lambda n: n, num_parallel_calls=2, deterministic=False),
}


@pytest.mark.parametrize("words", NOT_REPEATED)
def test_a_dataset_that_does_not_repeat_itself_is_told(words):
    found = private_names.why_not_repeated(NOT_REPEATED[words]().batch(2).prefetch(1))
    assert found is not None
    assert re.search(words.removeprefix("elements "), found), found


def test_a_dataset_of_stateless_operations_repeats_itself():
    dataset = tf.data.Dataset.zip((NOTHING.shuffle(4), tf.data.Dataset.random(seed=3)))
    noisy = dataset.map(lambda n, seed: (n, tf.random.stateless_uniform([], [seed, n])), num_parallel_calls=2)
    assert private_names.why_not_repeated(noisy.batch(2).cache()) is None


def test_a_dataset_of_another_order_by_iterator_goes_on_where_it_was(mirrored_strategy):
    def data():
        tf.random.set_seed(3)
        part = tf.data.Dataset.range(12).shuffle(12).batch(2)
        workers = mirrored_strategy.extended._input_workers
        return private_names.distributed(part, lambda count: part.skip(count), workers, mirrored_strategy, 6)

    def read(iterator):
        return [mirrored_strategy.experimental_local_results(batch)[0].numpy().tolist() for batch in iterator]

    whole = data()
    orders = [read(whole) for _ in range(3)]
    assert whole.num_iterators == 3
    assert orders[1] != orders[2]
    later = data()
    later.go_on(3, 4)
    assert read(later) == orders[2][4:]
    assert later.num_iterators == 3


def test_the_seeds_of_what_runs_at_once_are_a_generator_of_python_s():
    tf.random.set_seed(5)
    state = private_names.eager_draws().getstate()
    first = private_names.random_seed.get_seed(None)
    assert private_names.random_seed.get_seed(None) != first
    private_names.eager_draws().setstate(state)
    assert private_names.random_seed.get_seed(None) == first
    assert private_names.global_generator() is None or private_names.global_generator().state.shape.rank == 1
