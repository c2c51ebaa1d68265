"""The cuts of a global batch make up the batch, whatever the number of workers."""

import numpy as np
import pytest

from experiments.gpt.corpus import Corpus, load_corpus, rows_of


@pytest.fixture(scope="module")
def corpus():
    text = np.arange(5000, dtype=np.int64).astype(np.uint8)
    return Corpus(train=text, validation=text[:500], digest="")


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 12])
def test_cuts_of_all_workers_are_the_batch_of_one_worker(corpus, workers):
    whole = corpus.batch(7, seed=3, global_rows=12, context=16)
    cuts = [
        corpus.batch(7, seed=3, global_rows=12, context=16, worker=worker, workers=workers) for worker in range(workers)
    ]
    assert np.array_equal(np.concatenate([cut.tokens for cut in cuts]), whole.tokens)
    assert np.array_equal(np.concatenate([cut.targets for cut in cuts]), whole.targets)


def test_targets_are_the_tokens_one_byte_later(corpus):
    batch = corpus.batch(0, seed=1, global_rows=4, context=8)
    assert batch.tokens.shape == batch.targets.shape == (4, 8)
    assert np.array_equal(batch.tokens[:, 1:], batch.targets[:, :-1])


def test_a_batch_depends_on_step_and_seed_and_nothing_else(corpus):
    def tokens(step, seed):
        return corpus.batch(step, seed=seed, global_rows=4, context=16).tokens

    assert np.array_equal(tokens(1, 1), tokens(1, 1))
    assert not np.array_equal(tokens(1, 1), tokens(2, 1))
    assert not np.array_equal(tokens(1, 1), tokens(1, 2))


def test_rows_that_cannot_be_cut_equally_are_refused():
    with pytest.raises(ValueError, match=r"16 rows .* 3 workers; choose a multiple of 3"):
        rows_of(0, 3, 16)


def test_a_context_longer_than_the_text_is_refused(corpus):
    with pytest.raises(ValueError, match="500 bytes there are"):
        corpus.validation_batch(rows=1, context=500)


def test_the_last_byte_of_the_text_can_be_a_target():
    text = np.arange(5, dtype=np.uint8)
    batch = Corpus(train=text, validation=text, digest="").batch(0, seed=0, global_rows=8, context=4)
    assert (batch.targets[:, -1] == 4).all()


def test_files_are_read_in_the_order_of_their_paths_and_tests_are_left_out(tmp_path):
    for name in ("b.py", "a/z.py", "test/x.py", "site-packages/y.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"<{name}>")
    for index in range(19):
        (tmp_path / f"c{index:02}.py").write_text(f"<{index}>")
    corpus = load_corpus(tmp_path)
    assert corpus.train.tobytes().startswith(b"<a/z.py><b.py><0><1>")
    assert corpus.validation.tobytes() == b"<17>"
    assert not any(word in corpus.train.tobytes() for word in (b"x.py", b"y.py", b"notes"))


def test_a_library_without_sources_is_refused(tmp_path):
    with pytest.raises(ValueError, match="found 0"):
        load_corpus(tmp_path)


def test_the_standard_library_has_megabytes_of_text():
    corpus = load_corpus()
    assert corpus.train.nbytes > 2**20
    assert corpus.validation.nbytes > 2**14
    assert len(corpus.digest) == 64
