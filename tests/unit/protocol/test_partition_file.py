"""Partition tables of TOML files: read as they say, refused with file and line."""

import pytest

from coarse.errors import ConfigError
from coarse.protocol.partition import RankPlace, Role, partition_from_nodes, partition_from_text
from coarse.protocol.partition_file import partition_from_toml, stated_or_default
from coarse.protocol.place import Anywhere, DaxDevice, ExistingFile, Folder, GpuMemory, NumaNode


@pytest.fixture
def write(tmp_path):
    def write_text(text):
        path = tmp_path / "nodes.toml"
        path.write_text(text)
        return path

    return write_text


def entries(*lines):
    return "".join(f"[[rank]]\n{line}\n" for line in lines)


def test_a_file_may_split_a_host_and_name_switches_and_proxies(write):
    path = write(
        entries(
            'rank = 3\nrole = "memory_device"\nnode = "y"',
            'rank = 0\nrole = "worker"\nnode = "x"\nswitch = "s1"\nlocal_proxy = 1',
            'rank = 1\nrole = "memory_device"\nnode = "x"\nswitch = "s0"',
            'rank = 2\nrole = "worker"\nnode = "y"',
            'rank = 4\nrole = "memory_device"\nnode = "x"\nswitch = "s1"',
        )
    )
    table = partition_from_toml(path, ["host"] * 5)
    assert table.places[0] == RankPlace(rank=0, roles=Role.WORKER, node="x", switch="s1")
    assert table.devices == (1, 3, 4)
    assert table.local_proxies == (0, 1)


def test_the_device_of_the_same_switch_is_local_unless_the_file_says_otherwise(write):
    path = write(
        entries(
            'rank = 0\nrole = "worker"\nswitch = "s1"',
            'rank = 1\nrole = "worker"\nswitch = "s0"',
            'rank = 2\nrole = "memory_device"\nswitch = "s0"',
            'rank = 3\nrole = "memory_device"\nswitch = "s1"',
        )
    )
    assert partition_from_toml(path, ["host"] * 4).local_proxies == (1, 0)


def test_the_node_of_an_entry_is_its_host_by_default(write):
    path = write(entries('rank = 0\nrole = "both"', 'rank = 1\nrole = "both"'))
    table = partition_from_toml(path, ["a", "b"])
    assert [place.node for place in table.places] == ["a", "b"]
    assert table.local_proxies == (0, 1)


DEVICE = 'rank = 1\nrole = "memory_device"'


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (entries('rank = 0\nroll = "worker"', DEVICE), 3, "unknown key.*role"),
        (entries('rank = 0\nrole = "wroker"', DEVICE), 3, "role must be one of"),
        (entries('rank = 2\nrole = "worker"', DEVICE), 2, r"rank must lie in 0\.\.1"),
        (entries('role = "worker"', DEVICE), 1, "rank must be a whole number, got None"),
        (entries("rank = 0", DEVICE), 1, "role must be text, got None"),
        (entries('rank = "0"\nrole = "worker"', DEVICE), 2, "rank must be a whole number"),
        (entries('rank = 1\nrole = "worker"', DEVICE), 5, "listed twice"),
        (entries(DEVICE), 1, r"ranks \[0\] are not listed"),
        (entries('rank = 0\nrole = "memory_device"', DEVICE), 1, "no worker"),
        (entries('rank = 0\nrole = "worker"\nnode = "x"', DEVICE), 1, "no memory device"),
        (entries('rank = 0\nrole = "worker"\nlocal_proxy = 0', DEVICE), 4, r"one of \[1\], got 0"),
        (entries('rank = 0\nrole = "worker"', f"{DEVICE}\nlocal_proxy = 1"), 7, "is no worker"),
        (entries('rank = 0\nrole = "worker"', f'{DEVICE}\nmemory = "numa:-1"'), 7, "number of a NUMA node.*'numa:-1'"),
        (entries('rank = 0\nrole = "worker"', f'{DEVICE}\nmemory = "cxl:0"'), 7, "'numa:2'.*got 'cxl:0'.*leave it out"),
        (entries('rank = 0\nrole = "worker"', f"{DEVICE}\nmemory = 2"), 7, "memory must be text, got 2"),
        (entries('rank = 0\nrole = "worker"\nmemory = "numa:0"', DEVICE), 4, "rank 0 is no memory device"),
        ('memory = "numa:x"\n' + entries('rank = 0\nrole = "worker"', DEVICE), 1, "number of a NUMA node.*'numa:x'"),
        ("memory = 2\n" + entries('rank = 0\nrole = "worker"', DEVICE), 1, "memory must be text, got 2"),
        (
            entries('rank = 0\nrole = "both"\nmemory = "dax:/dev/dax0.0"', f'{DEVICE}\nmemory = "dax:/dev/dax0.0"'),
            8,
            "memory of rank 1 is 'dax:/dev/dax0.0', which rank 0 on the same host host has for itself",
        ),
        (
            entries(
                'rank = 0\nrole = "both"\nmemory = "file:/pool"\nmemory_bytes = 8193',
                f'{DEVICE}\nmemory = "file:/pool"\nmemory_offset_bytes = 8192',
            ),
            9,
            "from byte 8192', which rank 0 on the same host host has in part, as 'file:/pool from byte 0, 8193 bytes.*",
        ),
        (
            entries('rank = 0\nrole = "worker"', f'{DEVICE}\nmemory_offset_bytes = 4096'),
            7,
            "memory_offset_bytes means nothing for memory 'anywhere'",
        ),
        (
            entries('rank = 0\nrole = "worker"', f'{DEVICE}\nmemory = "file:/pool"\nmemory_offset_bytes = -4096'),
            8,
            r"memory_offset_bytes must lie in 0\.\..*got -4096",
        ),
        (
            entries('rank = 0\nrole = "worker"', f'{DEVICE}\nmemory = "file:/pool"\nmemory_bytes = "1 GiB"'),
            8,
            "memory_bytes must be a whole number, got '1 GiB'",
        ),
        (entries('rank = 0\nrole = "worker"', f'{DEVICE}\nmemory = "file:pool"'), 7, "an absolute path after file:"),
        (entries('rank = 0\nrole = "worker"', f'{DEVICE}\nmemory = "cuda:x"'), 7, "index of a GPU.*'cuda:x'"),
        (
            entries('rank = 0\nrole = "both"', f'{DEVICE}\nmemory = "cuda:0"'),
            7,
            "memory of rank 1 is 'cuda:0', and that of rank 0 on the same node host is 'anywhere'; put all .* or none",
        ),
        ("rank = 3\n", 1, "one .*rank.* table for each"),
        ("ranks = 3\n", 1, "unknown key 'ranks'"),
        ("[[rank]\n", 1, "not TOML"),
    ],
)
def test_an_impossible_file_is_refused_with_its_line(write, text, line, reason):
    with pytest.raises(ConfigError, match=rf"nodes\.toml:{line}: .*{reason}"):
        partition_from_toml(write(text), ["host"] * 2)


def test_a_file_may_not_join_two_hosts(write):
    path = write(
        entries('rank = 0\nrole = "worker"\nnode = "x"', 'rank = 1\nrole = "both"\nnode = "x"')
    )
    with pytest.raises(ConfigError, match=r"nodes\.toml:8: node 'x' would join hosts a and b"):
        partition_from_toml(path, ["a", "b"])


# --- where memory devices keep their bytes


def test_each_device_may_say_where_its_memory_is(write):
    path = write(
        entries(
            'rank = 0\nrole = "both"\nmemory = "numa:12"',
            'rank = 1\nrole = "memory_device"\nmemory = "dax:/dev/dax1.0"',
            'rank = 2\nrole = "memory_device"\nmemory = "folder:/mnt/huge"',
            'rank = 3\nrole = "memory_device"',
        )
    )
    table = partition_from_toml(path, ["host"] * 4)
    assert [place.memory for place in table.places] == [
        NumaNode(12),
        DaxDevice("/dev/dax1.0"),
        Folder("/mnt/huge"),
        Anywhere(),
    ]
    assert table.places[1].memory_said_at == f"{path}:8"


def test_devices_may_share_a_gpu_and_nodes_may_differ(write):
    path = write(
        entries(
            'rank = 0\nrole = "both"\nmemory = "cuda:0"',
            'rank = 1\nrole = "memory_device"\nmemory = "cuda:0"',
            'rank = 2\nrole = "both"',
        )
    )
    table = partition_from_toml(path, ["a", "a", "b"])
    assert [place.memory for place in table.places] == [GpuMemory(0), GpuMemory(0), Anywhere()]


def test_one_line_says_it_for_all_devices_that_do_not_say_it_themselves(write):
    path = write(
        'memory = "numa:1"\n'
        + entries(
            'rank = 0\nrole = "worker"',
            'rank = 1\nrole = "memory_device"',
            'rank = 2\nrole = "memory_device"\nmemory = "numa:3"',
        )
    )
    table = partition_from_toml(path, ["host"] * 3)
    assert [place.memory for place in table.places] == [Anywhere(), NumaNode(1), NumaNode(3)]
    assert table.places[1].memory_said_at == f"{path}:1"


def test_devices_of_a_host_may_have_ranges_of_one_file_that_one_line_names(write):
    path = write(
        'memory = "file:/mnt/famfs/pool"\n'
        + entries(
            'rank = 0\nrole = "both"\nmemory_offset_bytes = 8192',
            'rank = 1\nrole = "memory_device"\nmemory_bytes = 8192',
        )
    )
    table = partition_from_toml(path, ["host"] * 2)
    pool = "/mnt/famfs/pool"
    assert [place.memory for place in table.places] == [ExistingFile(pool, 8192), ExistingFile(pool, 0, 8192)]
    assert table.places[1].memory_said_at == f"{path}:9"


def test_two_hosts_may_each_have_a_devdax_device_of_the_same_name(write):
    path = write('memory = "dax:/dev/dax0.0"\n' + entries('rank = 0\nrole = "both"', 'rank = 1\nrole = "both"'))
    assert partition_from_toml(path, ["a", "b"]).num_devices == 2
    with pytest.raises(ConfigError, match=r"nodes\.toml:1: memory of rank 1 is .* rank 0 on the same host a"):
        partition_from_toml(path, ["a", "a"])


def test_the_same_file_elsewhere_makes_an_equal_table_but_another_place_does_not(write, tmp_path):
    text = entries('rank = 0\nrole = "both"\nmemory = "numa:0"')
    table = partition_from_toml(write(text), ["a"])
    (tmp_path / "copy.toml").write_text("# a copy\n" + text)
    assert repr(partition_from_toml(tmp_path / "copy.toml", ["a"])) == repr(table)
    (tmp_path / "other.toml").write_text(text.replace("numa:0", "numa:1"))
    assert repr(partition_from_toml(tmp_path / "other.toml", ["a"])) != repr(table)


def test_a_configuration_states_a_table_in_three_ways_or_not_at_all(write):
    path = write(entries('rank = 0\nrole = "worker"', DEVICE))
    table = partition_from_nodes(["a", "a"])
    assert stated_or_default(None, ["a", "a"]) == table
    assert stated_or_default("1:1", ["a", "a"]) == table
    assert stated_or_default("worker,memory_device", ["a", "a"]) == partition_from_text("1:1", ["a", "a"])
    assert stated_or_default(str(path), ["a", "a"]) == table
