"""Too few files for all workers are noticed as TensorFlow notices them, and no row is read for it."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from tf_strategy.data import datasets
from tf_strategy.data.datasets import are_files_enough
from tf_strategy.private_names import auto_sharded, may_read_files

NUM_FILES = 4
Data, Lines = tf.data.Dataset, tf.data.TextLineDataset


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Four files of eight lines."""
    folder = tmp_path_factory.mktemp("files")
    for number in range(NUM_FILES):
        (folder / f"{number}.txt").write_text("".join(f"{number}.{line}\n" for line in range(8)))
    return [str(file) for file in sorted(folder.iterdir())]


@pytest.fixture
def calls(monkeypatch):
    """How often a function was called that a dataset maps to its rows; nothing is known of datasets of other tests."""
    monkeypatch.setattr(datasets, "_first_reads", type(datasets._first_reads)())
    return []


def by_files(dataset, num_workers):
    """The first worker's part, as `distribute` makes it."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    workers = strategy.extended._input_workers
    return auto_sharded(dataset.batch(4).with_options(options), workers, strategy, 0, num_workers)


def generated(names):
    return Data.from_generator(lambda: iter(names), output_signature=tf.TensorSpec([], tf.string))


KINDS = {
    "a list": Lines,
    "names in turn": lambda names: Data.from_tensor_slices(names).interleave(Lines, num_parallel_calls=2),
    "list_files": lambda names: Data.list_files(names).flat_map(Lines),
    "readers in turn": lambda names: Data.list_files(names).map(Lines).interleave(lambda lines: lines),
    "a generator of names": lambda names: generated(names).flat_map(Lines),
    "filtered names": lambda names: Data.from_tensor_slices(names).filter(lambda name: name != "").flat_map(Lines),
    "groups of names": lambda names: Data.from_tensor_slices(names).batch(1).flat_map(Lines),
    "kept rows": lambda names: Lines(names).cache().shuffle(9, seed=1).repeat(),
    "two lists": lambda names: Data.zip((Lines(names), Lines(names))).map(lambda line, _: line),
}


@pytest.mark.parametrize("num_names", [1, NUM_FILES])
@pytest.mark.parametrize("kind", KINDS)
def test_files_are_counted_as_tensorflow_counts_them_and_no_row_is_read(kind, num_names, files, calls):
    def noted(line):
        calls.append(line)
        return line

    rows = KINDS[kind](files[:num_names]).map(lambda line: tf.numpy_function(noted, [line], tf.string))
    dataset = rows.map(lambda line: tf.ensure_shape(line, [])).prefetch(2)
    part = by_files(dataset, NUM_FILES)
    found = are_files_enough(dataset, part, NUM_FILES)
    assert not calls
    assert found == datasets._can_read(part) == (num_names == NUM_FILES)
    assert not datasets._first_reads


OTHERS = {
    "records": tf.data.TFRecordDataset,
    "records in turn": lambda names: Data.from_tensor_slices(names).interleave(tf.data.TFRecordDataset),
    "records of a length": lambda names: tf.data.FixedLengthRecordDataset(names, 2),
    "names": Data.from_tensor_slices,
    "files read whole": lambda names: Data.from_tensor_slices(names).map(tf.io.read_file),
    "numbers": lambda _: Data.range(9),
    "tensors": lambda _: Data.from_tensors([1, 2]),
    "a generator": generated,
    "drawn": lambda _: Data.random(seed=1),
    "groups": lambda _: Data.range(9).window(2).flat_map(lambda group: group.batch(2)),
}


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_tensorflow_is_asked_for_a_split_by_files_only_where_files_are_read(kind, files):
    dataset = (KINDS | OTHERS)[kind](files).map(lambda element: (element,)).prefetch(2)
    try:
        by_files(dataset, 2)
    except tf.errors.NotFoundError:
        assert not may_read_files(dataset)
    else:
        assert may_read_files(dataset)


def test_what_nothing_is_known_of_may_read_files(files):
    lines = Lines(files)
    assert may_read_files(tf.data.experimental.from_variant(tf.data.experimental.to_variant(lines), lines.element_spec))


def test_names_without_an_end_are_enough(files, calls):
    endless = Data.from_tensor_slices(files[:1]).repeat().flat_map(Lines)
    assert are_files_enough(endless, by_files(endless, 3), 3)


def test_each_list_of_files_must_do_for_all_workers(files, calls):
    """TensorFlow would notice the second when the first has been read."""
    both = Lines(files).concatenate(Lines(files[:1]))
    assert not are_files_enough(both, by_files(both, 2), 2)


def test_one_worker_has_enough_of_whatever_there_is(files, calls):
    one = Lines(files[:1])
    assert are_files_enough(one, one, 1)


@pytest.mark.parametrize("num_names", [1, NUM_FILES])
def test_a_dataset_whose_graph_does_not_tell_is_read_once(files, calls, monkeypatch, num_names):
    def noted(line):
        calls.append(line)
        return line

    monkeypatch.setattr(datasets, "_lists_of_names", lambda part: iter(()))
    lines = Lines(files[:num_names]).map(lambda line: tf.numpy_function(noted, [line], tf.string))
    lines = lines.map(lambda line: tf.ensure_shape(line, []))
    assert are_files_enough(lines, by_files(lines, 2), 2) == (num_names == NUM_FILES)
    num_calls = len(calls)
    assert are_files_enough(lines, by_files(lines, 2), 2) == (num_names == NUM_FILES)
    assert len(calls) == num_calls
    assert len(datasets._first_reads) == 1
    del lines
    gc.collect()
    assert not datasets._first_reads


def test_names_that_cannot_be_read_are_left_to_where_the_data_are_used(calls):
    def names():
        raise OSError("no such disk")
        yield ""

    broken = Data.from_generator(names, output_signature=tf.TensorSpec([], tf.string)).flat_map(Lines)
    part = by_files(broken, 2)
    assert are_files_enough(broken, part, 2)
    with pytest.raises(tf.errors.OpError, match="no such disk"):
        next(iter(part))


def test_a_part_that_is_counted_is_read_afterwards_as_it_is(files, calls):
    lines = Data.list_files(files, seed=1).flat_map(Lines)
    part = by_files(lines, 2)
    assert are_files_enough(lines, part, 2)
    rows = np.concatenate(list(part.as_numpy_iterator()))
    assert sorted(rows) == sorted(f"{number}.{line}".encode() for number in (0, 2) for line in range(8))
