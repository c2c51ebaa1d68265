"""Who takes which part of a pool, what files are taken, and that all devices have the same one."""

import fcntl
import itertools
import os

import numpy as np
import pytest

from coarse.errors import CapacityError, ConfigError
from coarse.pool.opening import POOL, PoolPlan, check_signature, pool_files, sign
from coarse.pool.shared.memory import CoherentLines, MappedPool
from coarse.protocol.config import PoolSettings
from coarse.protocol.units import LINE_BYTES


def plan(path="pool", hosts=(0, 1, 1), **settings):
    return PoolPlan(settings=PoolSettings(path=str(path), **settings), hosts=hosts)


@pytest.mark.parametrize("ring_bytes", [4096, 4100, 1 << 20])
def test_rings_lie_apart_in_whole_lines_within_the_data(ring_bytes):
    planned = plan(ring_bytes=ring_bytes)
    spans = sorted((p.offset, p.offset + 2 * LINE_BYTES + p.ring_bytes) for p in planned.places.values())
    assert len(spans) == 6
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert all(begin % LINE_BYTES == end % LINE_BYTES == 0 for begin, end in spans)
    assert (spans[0][0], spans[-1][1]) == (LINE_BYTES, planned.data_bytes)
    assert all(place.ring_bytes >= ring_bytes for place in planned.places.values())


def test_a_checked_pool_has_room_for_its_history_and_a_cache_for_each_host(tmp_path):
    planned = plan(tmp_path / "pool", hosts=(0, 4, 4), coherence="checked")
    assert planned.file_bytes > 2 * planned.data_bytes
    (tmp_path / "pool").write_bytes(b"\0")
    os.truncate(tmp_path / "pool", planned.file_bytes)
    files = pool_files(planned, claims=True)
    assert set(files) == {POOL, f"{POOL} 0", f"{POOL} 4"}
    for descriptor in files.values():
        os.close(descriptor)


def test_the_file_keeps_its_length_and_what_else_is_in_it(tmp_path):
    path = tmp_path / "pool"
    planned = plan(path)
    path.write_bytes(bytes([7]) * (planned.file_bytes + 100))
    os.close(pool_files(planned, claims=True)[POOL])
    assert path.read_bytes() == bytes([7]) * (planned.file_bytes + 100)


def test_a_file_that_is_locked_is_refused_to_who_locks(tmp_path):
    path = tmp_path / "pool"
    planned = plan(path)
    path.touch()
    os.truncate(path, planned.file_bytes)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process uses the file"):
            pool_files(planned, claims=True)
        os.close(pool_files(planned, claims=False)[POOL])


def test_what_is_no_file_or_too_short_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\[pool\] path .*there is no such file .*fallocate"):
        pool_files(plan(tmp_path / "absent"), claims=True)
    with pytest.raises(ConfigError, match="this is a folder"):
        pool_files(plan(tmp_path), claims=True)
    with pytest.raises(ConfigError, match="no devdax device"):
        pool_files(plan("/dev/zero"), claims=True)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="this is no regular file"):
        pool_files(plan(tmp_path / "fifo"), claims=True)
    (tmp_path / "short").write_bytes(bytes(8192))
    with pytest.raises(CapacityError, match=r"3 memory devices need \d+ bytes: .* the file has 8192"):
        pool_files(plan(tmp_path / "short"), claims=True)


def test_a_device_that_sees_other_memory_is_told():
    first, other = (MappedPool(np.zeros(LINE_BYTES, np.uint8), CoherentLines()) for _ in range(2))
    sign(first, "00000000000000ff")
    check_signature(first, "00000000000000ff", "pool", "rank 2")
    with pytest.raises(ConfigError, match=r"rank 2 does not see in \[pool\] path 'pool'"):
        check_signature(other, "00000000000000ff", "pool", "rank 2")


def test_too_many_devices_are_not_checked():
    with pytest.raises(ConfigError, match="watches at most 16 memory devices, got 17"):
        plan(hosts=tuple(range(17)), coherence="checked")
    plan(hosts=tuple(range(17)))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"path": ""}, "path must be"),
        ({"path": "x", "coherence": "some"}, "coherence must be one of hardware, software, checked, got 'some'"),
        ({"path": "x", "ring_bytes": 10}, "ring_bytes must be a whole number of at least 4096"),
    ],
)
def test_settings_are_checked(settings, said):
    with pytest.raises(ConfigError, match=said):
        PoolSettings(**settings)
