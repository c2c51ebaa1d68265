"""Memory that two kernels share: a pool that carries all bytes between memory devices, and ranges of one device.

Both guests have one NVDIMM, whose bytes are those of one file; its devdax device is /dev/dax0.0 on both.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.initramfs import SHARE
from tests.hosts.jobs import MIB, mpirun, sparse, written
from tests.hosts.machine import LABEL_BYTES, Nvdimm
from tests.hosts.pair import LOSS_S, LOSS_SETTINGS, Pair
from tests.support.launch import REPOSITORY

POOL_BYTES = 256 * MIB
RESCAN = "ndctl disable-region all && ndctl disable-dimm all && ndctl enable-dimm all && ndctl enable-region all"
"""The second guest has read the labels before the first wrote a namespace's."""


def pair_with_pool(folder: Path, images: dict[Path, Path]) -> Pair:
    nvdimm = Nvdimm(file=sparse(folder / "pool", POOL_BYTES + LABEL_BYTES), nbytes=POOL_BYTES + LABEL_BYTES)
    return Pair(folder, images, memory_bytes=1536 << 20, pool=nvdimm)


def make_devices(pair: Pair) -> None:
    """Make the NVDIMM a devdax device on both guests."""
    pair.first.run("ndctl create-namespace -f -e namespace0.0 -m devdax").checked()
    pair.second.run(RESCAN).checked()
    for guest in (pair.first, pair.second):
        devices = json.loads(guest.run("daxctl list").checked())
        assert [(device["chardev"], device["mode"]) for device in devices] == [("dax0.0", "devdax")]


@pytest.fixture(scope="module")
def pair(images: dict[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair_with_pool(tmp_path_factory.mktemp("pool"), images) as pair:
        make_devices(pair)
        yield pair


def pooled(pair: Pair, name: str, coherence: str, more: str = "") -> dict[str, str]:
    """Return the environment of a job whose devices send by the pool."""
    settings = f'{more}\n[pool]\npath = "/dev/dax0.0"\ncoherence = "{coherence}"\nring_bytes = {4 * MIB}\n'
    return {"COARSE_CONFIG": written(pair.first, f"{name}.toml", settings)}


def bytes_by_network(pair: Pair) -> int:
    """Return what the first guest has sent and received by its card, as its kernel counts."""
    files = "/sys/class/net/eth0/statistics/rx_bytes /sys/class/net/eth0/statistics/tx_bytes"
    return sum(map(int, pair.first.run(f"cat {files}").checked().split()))


def carried(pair: Pair, environment: dict[str, str] | None) -> tuple[int, int]:
    """Return the bytes that a device of a job of sums sent to the other's node, and those that crossed the network."""
    before = bytes_by_network(pair)
    printed = pair.run("sums.py", environment=environment).checked()
    said = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert [each["sums"] for each in said] == ["right"] * 2, printed
    return min(each["between_nodes"] for each in said), bytes_by_network(pair) - before


def test_all_bytes_between_devices_go_by_the_pool_and_control_alone_by_the_network(pair: Pair) -> None:
    sent, crossed = carried(pair, None)
    assert crossed > sent > 10 * MIB
    sent, crossed = carried(pair, pooled(pair, "software", "software"))
    assert sent > 10 * MIB
    assert crossed < sent / 4
    print(f"by the pool {sent} bytes, by the network {crossed}")


def test_a_checked_pool_finds_no_missing_flush_between_two_kernels(pair: Pair) -> None:
    carried(pair, pooled(pair, "checked", "checked"))


def test_a_pool_that_one_host_does_not_have_is_refused_by_name(pair: Pair) -> None:
    settings = '[pool]\npath = "/dev/dax9.0"\ncoherence = "software"\n'
    ran = pair.run("sums.py", environment={"COARSE_CONFIG": written(pair.first, "absent.toml", settings)})
    assert ran.status not in (0, None)
    assert "ConfigError" in ran.output
    assert "/dev/dax9.0" in ran.output


def test_devices_of_two_hosts_have_ranges_of_one_device(pair: Pair) -> None:
    table = "".join(
        f'[[rank]]\nrank = {2 * host}\nrole = "worker"\n[[rank]]\nrank = {2 * host + 1}\nrole = "memory_device"\n'
        f'memory = "dax:/dev/dax0.0"\nmemory_offset_bytes = {host * 128 * MIB}\nmemory_bytes = {96 * MIB}\n'
        for host in range(2)
    )
    partition = written(pair.first, "ranges.partition.toml", table)
    environment = {"COARSE_CONFIG": written(pair.first, "ranges.toml", f'partition = "{partition}"\n')}
    sent, _ = carried(pair, environment)
    assert sent > 10 * MIB


def test_a_snapshot_of_one_host_is_restored_on_the_other(pair: Pair) -> None:
    environment = {"PYTHONPATH": str(REPOSITORY)}
    for guest, what in ((pair.first, "take"), (pair.second, "load")):
        printed = guest.run(mpirun(3, "snapshot.py", what, f"{SHARE}/snapshot"), environment=environment).checked()
        assert len(re.findall(rf"worker \d: {what} is right", printed)) == 2, printed


def test_a_host_that_dies_in_the_middle_of_a_message_ends_the_job_in_time(
    images: dict[Path, Path], tmp_path: Path
) -> None:
    with pair_with_pool(tmp_path, images) as pair:
        make_devices(pair)
        environment = pooled(pair, "killed", "software", LOSS_SETTINGS)
        ran, took_s = pair.lose_second(environment)
        assert ran.status not in (0, None), ran.output
        assert "StallError" in ran.output
        assert took_s < LOSS_S, f"ended after {took_s:.0f} s"
