"""What `coarse check` can say of a partition before any rank runs."""

import pytest

from coarse.errors import ConfigError
from coarse.protocol.partition_file import stated_or_default, stated_partition


def table(*entries: str) -> str:
    return "".join(f"[[rank]]\n{entry}\n" for entry in entries)


@pytest.mark.parametrize(
    ("partition", "workers", "devices"),
    [
        ("2:2", (0, 1), (2, 3)),
        (" 3 : 1 ", (0, 1, 2), (3,)),
        ("worker,memory_device,both", (0, 2), (1, 2)),
    ],
)
def test_a_text_says_how_many_ranks_it_is_for(partition, workers, devices):
    found = stated_partition(partition)
    assert (found.workers, found.devices) == (workers, devices)


def test_a_table_says_how_many_ranks_it_is_for(tmp_path):
    path = tmp_path / "table.toml"
    path.write_text(table('rank = 1\nrole = "memory_device"', 'rank = 0\nrole = "worker"'))
    assert (stated_partition(str(path)).workers, stated_partition(str(path)).devices) == ((0,), (1,))


@pytest.mark.parametrize("partition", ["2:x", "0:2", "2:0", "00:1", "worker,wrker", "worker,worker", "absent.toml"])
def test_a_text_that_fits_no_ranks_is_refused(partition):
    with pytest.raises(ConfigError):
        stated_partition(partition)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            ('rank = 0\nrole = "worker"', 'rank = 7\nrole = "memory_device"'),
            r"table\.toml:1: 2 ranks are listed, which must be 0 to 1, got \[0, 7\]; number them without gaps",
        ),
        (
            ('rank = 0\nrole = "worker"\nnode = "a"', 'rank = 1\nrole = "memory_device"\nnode = "b"'),
            "node a has worker rank 0 but no memory device",
        ),
        (('rank = 0\nrole = "worker"', 'rank = 0\nrole = "both"'), "rank 0 is listed twice"),
        (('rank = "0"\nrole = "both"',), "rank must be a whole number"),
        ((), r"write one \[\[rank\]\] table for each rank"),
    ],
)
def test_a_table_that_fits_no_ranks_is_refused_where_it_is_wrong(tmp_path, entries, message):
    path = tmp_path / "table.toml"
    path.write_text(table(*entries))
    with pytest.raises(ConfigError, match=message):
        stated_partition(str(path))


@pytest.mark.parametrize("partition", ["99999999:1", "1:65535", "1" + "0" * 5000 + ":1"])
def test_more_ranks_than_a_job_can_have_are_refused_at_once(partition):
    with pytest.raises(ConfigError, match="at most 65535 ranks; coarse predict simulates"):
        stated_partition(partition)


def test_a_table_without_ranks_is_refused(tmp_path):
    (tmp_path / "table.toml").write_text("rank = []\n")
    with pytest.raises(ConfigError, match=r"table\.toml:1: write one \[\[rank\]\] table for each rank"):
        stated_partition(str(tmp_path / "table.toml"))
    with pytest.raises(ConfigError, match=r"write one \[\[rank\]\]"):
        stated_or_default(str(tmp_path / "table.toml"), ["here", "here"])


@pytest.mark.parametrize("rank", ["5", "[1, 2]", '"text"', "{role = 1}"])
def test_what_is_no_list_of_tables_is_refused_as_such(tmp_path, rank):
    (tmp_path / "table.toml").write_text(f"rank = {rank}\n")
    with pytest.raises(ConfigError, match=r"write one \[\[rank\]\]"):
        stated_partition(str(tmp_path / "table.toml"))
