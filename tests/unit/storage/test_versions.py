"""Versions count results."""

from coarse.storage.versions import VersionTable


def test_a_key_without_a_result_is_at_version_0_and_each_result_adds_one():
    table = VersionTable()
    assert table.current(7) == 0
    assert [table.on_result(7), table.on_result(7), table.on_result(9)] == [1, 2, 1]
    assert (table.current(7), table.current(9)) == (2, 1)
    assert table.keys() == (7, 9)


def test_only_the_last_results_are_remembered():
    table = VersionTable(num_remembered=2)
    for key in (1, 2, 1):
        table.on_result(key)
    assert table.recent() == ((2, 1), (1, 2))


def test_an_error_can_say_what_the_device_stored_last():
    table = VersionTable()
    assert "last stored here: nothing" in table.describe(5)
    table.on_result(5)
    assert table.describe(5) == "key 5 is at version 1; last stored here: key 5 version 1"
