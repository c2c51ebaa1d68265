"""Which rank writes to a path, and what ranks must find alike."""

import pytest

from coarse.errors import MismatchError
from tf_strategy.agreement.file_callbacks import Said, is_silent, require_one_beginning


def said(*paths: int) -> list[Said]:
    """What a rank says of callbacks with these paths."""
    return [Said(path, 0) for path in paths]


def test_of_ranks_that_name_a_path_the_first_alone_writes():
    of_ranks = [said(1), said(2, 1), said(), said(3, 2, 3)]
    writers = {path: [rank for rank in range(4) if path in [one.path for one in of_ranks[rank]]
                      and not is_silent(of_ranks, rank, path)] for path in (1, 2, 3)}  # fmt: skip
    assert writers == {1: [0], 2: [1], 3: [3]}


def test_ranks_that_find_a_backup_or_none_alike_begin_alike():
    require_one_beginning([{1: 1, 2: 0}, {1: 1, 2: 0}, {}])
    require_one_beginning([{1: 1}, {2: 0}])
    require_one_beginning([])


def test_who_finds_a_backup_that_others_do_not_is_named():
    with pytest.raises(MismatchError, match=r"ranks \[0, 2\] find a backup .* and ranks \[1\] find none"):
        require_one_beginning([{1: 1}, {1: 0}, {1: 1}, {}])
