"""Versions count results."""

from coarse.storage.versions import VersionTable


def test_a_key_without_a_result_is_at_version_0_and_each_result_adds_one():
    table = VersionTable()
    assert table.current(7) == 0
    assert [table.on_result(7), table.on_result(7), table.on_result(9)] == [1, 2, 1]
    assert (table.current(7), table.current(9)) == (2, 1)
    assert table.keys() == (7, 9)
    assert table.num_results == 3
