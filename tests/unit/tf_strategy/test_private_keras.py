"""Keras' private names exist in the version installed, and do what tf_strategy relies on; see test_private_names."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_strategy import private_keras, private_names

OF_KERAS = pytest.mark.filterwarnings("ignore:__array__ implementation")
"""What Keras' variables are warned of under numpy 2."""


@pytest.fixture
def seen_of_keras(mirrored_strategy, monkeypatch) -> dict[str, list[object]]:
    """What is known while Keras distributes a dataset, and of the functions that it runs, in fit and predict."""
    seen: dict[str, list[object]] = {"counts": [], "steps": [], "logged": [], "methods": []}
    distribute, run = mirrored_strategy.extended._experimental_distribute_dataset, mirrored_strategy.run

    def distributing(dataset, options):
        seen["counts"].append(private_keras.keras_counts())
        seen["methods"].append(private_keras.keras_method())
        return distribute(dataset, options)

    def running(fn, *args, **kwargs):
        seen["steps"].append(private_keras.is_keras_predict_step(fn))
        seen["logged"].append(private_keras.is_keras_logged_step(fn))
        return run(fn, *args, **kwargs)

    monkeypatch.setattr(mirrored_strategy.extended, "_experimental_distribute_dataset", distributing)
    monkeypatch.setattr(mirrored_strategy, "run", running)
    return seen


def test_keras_is_asked_how_many_batches_and_steps_there_are_and_whether_it_predicts(mirrored_strategy, seen_of_keras):
    rows = np.ones((12, 3), np.float32)
    with mirrored_strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    pairs = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(4)
    model.fit(pairs, steps_per_epoch=2, shuffle=False, verbose=0)
    assert private_keras.keras_counts() is None
    assert seen_of_keras["counts"] == [(3, 2)]
    assert set(seen_of_keras["steps"]) == {False}
    seen_of_keras["steps"].clear()
    model.predict(tf.data.Dataset.from_tensor_slices(rows).batch(4), verbose=0)
    assert seen_of_keras["counts"][1:] == [(3, None)]
    assert set(seen_of_keras["steps"]) == {True}


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_step_that_keras_runs_for_its_logs_is_told_from_one_s_own_run_of_it(
    mirrored_strategy, seen_of_keras, run_eagerly
):
    rows = np.ones((12, 3), np.float32)
    with mirrored_strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=run_eagerly, steps_per_execution=2 - run_eagerly)
    model.optimizer.build(model.trainable_variables)
    for keras_run in (model.train_on_batch, model.test_on_batch, model.fit, model.evaluate):
        keras_run(rows, rows[:, :1], **({"verbose": 0} if keras_run in (model.fit, model.evaluate) else {}))
        assert set(seen_of_keras["logged"]) == {True}, keras_run
        seen_of_keras["logged"].clear()
    model.predict(rows, verbose=0)
    mirrored_strategy.run(model.train_step, args=((tf.constant(rows), tf.constant(rows[:, :1])),))
    assert set(seen_of_keras["logged"]) == {False}


def test_of_methods_of_keras_within_one_another_the_inner_is_told(mirrored_strategy, seen_of_keras):
    rows = np.ones((12, 3), np.float32)
    with mirrored_strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    looks = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: model.evaluate(rows, rows, verbose=0))
    data = {"x": rows, "y": rows[:, :1]}
    model.fit(**data, validation_data=(rows, rows[:, :1]), callbacks=[looks], verbose=0)
    model.predict(rows, verbose=0)
    assert seen_of_keras["methods"] == ["fit", "fit", "evaluate", "predict"]
    assert private_keras.keras_method() is None


def test_what_layers_write_in_forward_and_what_is_not_trained_is_written_by_design(mirrored_strategy):
    seen = []

    class Writes(keras.layers.Layer):
        def build(self, shape):
            self.weight = self.add_weight(name="weight")

        def call(self, rows):
            self.weight.assign(2.0 * self.weight)
            return rows

    with mirrored_strategy.scope():
        layer = Writes()
        layer.build(())
    private_names.on_replica_write(layer.weight.value, lambda _: seen.append(private_keras.writes_by_design()))
    for run in (mirrored_strategy.run, tf.function(mirrored_strategy.run)):
        run(lambda: layer(tf.ones(2)))
        run(lambda: layer.weight.assign(1.0))
        layer.trainable = False
        run(lambda: layer.weight.assign(1.0))
        layer.trainable = True
    assert seen == [True, False, True] * 2


def test_an_optimizer_knows_what_it_was_built_for():
    weight = keras.Variable(1.0)
    for optimizer in (keras.optimizers.SGD(), keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())):
        assert private_keras.trained_variables(optimizer) == []
        optimizer.build([weight])
        assert [one is weight for one in private_keras.trained_variables(optimizer)] == [True]


@pytest.fixture
def fitted() -> keras.Model:
    """A model of one weight."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_data_that_end_before_the_first_batch_are_refused_where_they_build_a_model(mirrored_strategy, monkeypatch):
    trainer = private_keras.TensorFlowTrainer
    monkeypatch.setattr(trainer, "_maybe_symbolic_build", trainer._maybe_symbolic_build)
    refused = []
    private_keras.on_data_without_a_batch(refused.append)
    with mirrored_strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    nothing = tf.data.Dataset.from_tensor_slices((np.ones((0, 1)), np.ones((0, 1)))).batch(2)
    for use, settings in ((model.fit, {"shuffle": False}), (model.evaluate, {})):
        with pytest.raises(StopIteration):
            use(nothing, verbose=0, **settings)
    assert refused == [model] * 2


def test_a_checkpoint_is_told_to_be_saved_where_it_would_be(fitted, tmp_path):
    best = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras", "loss", save_best_only=True, mode="min")
    best.set_model(fitted)
    best._set_monitor_op()
    losses = enumerate((3.0, 4.0, 2.0))
    found = [private_keras.path_to_save(best, epoch, None, {"loss": loss}) for epoch, loss in losses]
    assert found == [str(tmp_path / "1.keras"), None, str(tmp_path / "3.keras")]
    assert best.best == 2.0
    assert list(tmp_path.iterdir()) == []


@OF_KERAS
def test_a_backup_is_found_where_one_was_written(fitted, tmp_path):
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)
    assert not private_keras.has_backup(backup)
    fitted.fit(np.ones((4, 1)), np.ones((4, 1)), callbacks=[backup], verbose=0)
    assert private_keras.has_backup(backup)


@OF_KERAS
@pytest.mark.parametrize("written", [False, True])
def test_summaries_are_written_or_not(fitted, tmp_path, written):
    board = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, update_freq="batch", profile_batch=1)
    private_keras.set_summaries(board, written=written)
    fitted.fit(np.ones((4, 1)), np.ones((4, 1)), callbacks=[board], verbose=0)
    assert (list(tmp_path.iterdir()) != []) == written


@OF_KERAS
def test_saving_within_a_scope_makes_no_variable_of_the_strategy(mirrored_strategy, tmp_path, monkeypatch):
    monkeypatch.setattr(private_keras.saving_lib, "get_attr_skipset", private_keras.saving_lib.get_attr_skipset)
    created = []

    def noted(next_creator, **kwargs):
        created.append(kwargs["name"])
        return next_creator(**kwargs)

    with mirrored_strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with tf.variable_creator_scope(noted):
            model.save(tmp_path / "before.keras")
            assert created != []  # what one rank alone would wait with
            created.clear()
            private_keras.let_one_rank_save_within_a_scope()
            model.save(tmp_path / "after.keras")
            assert created == []
    found = [keras.saving.load_model(tmp_path / f"{name}.keras").get_weights() for name in ("before", "after")]
    assert np.array_equal(found[0][0], found[1][0])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN", "ConvLSTM1D"])
@pytest.mark.parametrize("is_built_at_once", [False, True])
def test_states_of_stateful_layers_are_told_from_other_variables_as_they_are_made(kind, is_built_at_once):
    made = {}

    def note(create, **settings):
        variable = create(**settings)
        made[id(variable)] = private_keras.makes_row_state()
        return variable

    shape = (2, 3, 4, 1) if kind.startswith("Conv") else (2, 3, 4)
    settings = {"filters": 2, "kernel_size": 1} if kind.startswith("Conv") else {"units": 2}
    with tf.variable_creator_scope(note):
        layer = getattr(keras.layers, kind)(stateful=True, **settings)
        model = keras.Sequential([layer])
        if is_built_at_once:
            model.build(shape)
        else:  # under a scope in which nothing may be made yet
            keras.Model(entry := keras.Input(batch_shape=shape), model(entry))
    assert [made[id(state.value)] for state in layer.states] == [True] * len(layer.states)
    assert {made[id(weight.value)] for weight in layer.trainable_variables} == {False}


@pytest.fixture
def fits(mirrored_strategy):
    """A model, and what one of its callbacks sees of `fit` where training begins and before each batch."""
    with mirrored_strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    seen = []

    class Looks(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.append(private_keras.fit_under_way())

        def on_train_batch_begin(self, batch, logs=None):
            seen.append((batch, private_keras.traced_step(self.model)))

    return model, Looks(), seen


def test_a_callback_finds_the_fit_that_calls_it_and_its_step_traced(fits):
    model, looks, seen = fits
    rows = np.ones((12, 3), np.float32)
    model.fit(rows, rows[:, :1], batch_size=4, epochs=2, shuffle=False, callbacks=[looks], verbose=0)
    fit, *steps = seen
    assert fit.num_epochs == 2
    assert looks in fit.callbacks.callbacks
    assert private_keras.is_of_arrays(fit.batches)
    assert not private_keras.draws_from_arrays(fit.batches)
    assert private_keras.num_batches_known(fit.batches) == 3
    assert not private_keras.has_own_steps(fit.batches)
    assert isinstance(private_keras.data_of(fit.batches), tf.distribute.DistributedDataset)
    assert [batch for batch, _ in steps] == [0, 1, 2, 0, 1, 2]
    assert {"MatMul", "AssignSubVariableOp"} <= private_names.operation_types_of(steps[0][1])


def test_fit_leaves_out_what_it_is_told_and_takes_the_logs_that_it_is_given(fits):
    model, looks, seen = fits
    rows = tf.data.Dataset.from_tensor_slices((np.ones((12, 3), np.float32), np.ones((12, 1), np.float32))).batch(4)

    class GoesOn(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            fit = private_keras.fit_under_way()
            private_keras.begin_at(self.model, 2)
            private_keras.pass_over(fit.batches, private_keras.PlaceInFit(self.steps, self.steps, 3), is_over=False)
            private_keras.give_logs(self.model, {"other": 1.5})

    for steps, wanted in ((2, [2, 0, 1, 2]), (3, [0, 1, 2])):
        goes_on = GoesOn()
        goes_on.steps = steps
        seen.clear()
        history = model.fit(rows, epochs=4, shuffle=False, callbacks=[looks, goes_on], verbose=0)
        private_keras.begin_at(model, None)
        assert [batch for batch, _ in seen[1:]] == wanted
        assert history.epoch == [2, 3]
    assert history.history["other"] == [1.5]


def test_what_callbacks_have_seen_is_in_attributes_that_exist():
    callbacks = [
        keras.callbacks.EarlyStopping(), keras.callbacks.ReduceLROnPlateau(), keras.callbacks.History(),
        keras.callbacks.ModelCheckpoint("model.keras"),
    ]  # fmt: skip
    for callback in callbacks:
        callback.on_train_begin()
        names = private_keras._KEPT[type(callback)]
        seen = private_keras.seen_by(callback)
        assert seen is not None
        assert set(seen) >= set(names) - {"best_epoch", "_current_epoch"}, type(callback)
        private_keras.set_seen(callback, seen)
    assert private_keras.seen_by(keras.callbacks.TerminateOnNaN()) is None


def test_the_generator_without_a_seed_is_kept_among_keras_globals():
    made = private_keras.make_global_seeds()
    assert private_keras.global_seeds() is made
    keras.random.normal([2])
    assert private_keras.global_seeds() is made
