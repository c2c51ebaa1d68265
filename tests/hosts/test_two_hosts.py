"""Jobs on two kernels with a network between them: mpirun over ssh, torchrun, all modes, and what can go wrong."""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.hosts.initramfs import SHARE
from tests.hosts.jobs import BIN, written
from tests.hosts.pair import ADDRESSES, HOSTFILE, LOSS_S, LOSS_SETTINGS, Pair, require_sums
from tests.support.launch import REPOSITORY

TRAIN = REPOSITORY / "experiments" / "train_gpt.py"
TINY = ("--steps", 4, "--layers", 1, "--width", 16, "--context", 16, "--batch", 8, "--no-exposed")
DIGEST = re.compile(r"SHA-256 of the parameters ([0-9a-f]{64})")
PORTS = "20000-20200"


@pytest.fixture(scope="module")
def pair(images: dict[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("two"), images) as pair:
        yield pair


@pytest.fixture
def mortal(images: dict[Path, Path], tmp_path: Path) -> Iterator[Pair]:
    """Return guests of one test, which may kill them."""
    with Pair(tmp_path, images, memory_bytes=1536 << 20) as pair:
        yield pair


def test_mpirun_starts_ranks_on_both_by_ssh(pair: Pair) -> None:
    require_sums(pair.run("sums.py").checked())


MODES = {
    "coarse": (), "allreduce": (), "fcdp": (), "odc": (), "luwu": ("--storage", "/run/tmp/luwu-{}"),
    "luwu by UDP": ("--storage", "/run/tmp/luwu-udp-{}", "--network", "udp"),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_training_on_two_hosts_has_the_parameters_of_one(pair: Pair, mode: str) -> None:
    digests = []
    for alone in (True, False):
        options = [option.format("one" if alone else "two") for option in MODES[mode]]
        out = f"{SHARE}/out-{mode.replace(' ', '-')}-{alone}"
        ran = pair.train(TRAIN, "--mode", mode.split()[0], *TINY, *options, "--out", out, alone=alone)
        (digest,) = set(DIGEST.findall(ran.checked()))
        digests.append(digest)
    assert digests[0] == digests[1]


def test_torchrun_on_two_hosts_has_memory_devices_started_beside_by_ssh(pair: Pair) -> None:
    names = json.dumps(list(ADDRESSES))
    settings = f"startup_timeout_s = 300\n[launch]\ndevices = 1\nhosts = {names}\n"
    environment = {"COARSE_CONFIG": written(pair.first, "torchrun.toml", settings), "PYTHONPATH": str(REPOSITORY)}
    program = REPOSITORY / "tests" / "hosts" / "programs" / "torch_sum.py"
    command = f"{BIN / 'torchrun'} --nnodes 2 --nproc-per-node 2 --master-addr node1 --master-port 29511 "

    def run(rank: int) -> str:
        guest = pair.guests[rank]
        return guest.run(f"{command} --node-rank {rank} {program}", environment=environment, timeout_s=900).checked()

    with ThreadPoolExecutor() as pool:
        printed = "".join(pool.map(run, range(2)))
    assert sorted(re.findall(r"worker (\d) of 4: 10.0", printed)) == ["0", "1", "2", "3"]


def test_clocks_that_differ_by_an_hour_change_nothing(pair: Pair) -> None:
    pair.second.run("date -s '+1 hour'").checked()
    try:
        require_sums(pair.run("sums.py").checked())
    finally:
        pair.second.run("date -s '-1 hour'").checked()


def test_a_host_name_that_does_not_resolve_is_named(pair: Pair) -> None:
    written(pair.first, "unknown-hosts", "node1 slots=2\nnode9 slots=2\n")
    command = pair.command("sums.py").replace(HOSTFILE, f"{SHARE}/unknown-hosts")
    ran = pair.first.run(command, timeout_s=120)
    assert ran.status not in (0, None)
    assert "node9" in ran.output


def test_a_firewall_that_drops_everything_is_named_with_its_host(pair: Pair) -> None:
    pair.second.run("iptables -I INPUT -i eth0 -j DROP").checked()
    try:
        environment = {"PRTE_MCA_plm_ssh_args": "-o ConnectTimeout=10"}
        began_s = time.monotonic()
        ran = pair.first.run(pair.command("sums.py"), environment=environment, timeout_s=120)
        assert ran.status not in (0, None)
        assert time.monotonic() - began_s < 60
        assert "node2" in ran.output
        assert "firewall" in ran.output
    finally:
        pair.second.run("iptables -D INPUT -i eth0 -j DROP").checked()


def test_a_firewall_that_lets_mpirun_through_alone_is_found_within_the_time_limit(pair: Pair) -> None:
    """Ranks start, since ssh and mpirun's daemons get through; no message of MPI does."""
    rules = (
        "-A INPUT -i eth0 -p tcp --dport 22 -j ACCEPT",
        f"-A INPUT -i eth0 -p tcp --dport {PORTS.replace('-', ':')} -j ACCEPT",
        "-A INPUT -i eth0 -m conntrack --ctstate ESTABLISHED -j ACCEPT", "-A INPUT -i eth0 -j DROP",
    )  # fmt: skip
    pair.on_each(" && ".join(f"iptables {rule}" for rule in rules))
    try:
        environment = {"COARSE_CONFIG": written(pair.first, "walled.toml", "startup_timeout_s = 15\n")}
        options = ("--prtemca", "oob_tcp_dynamic_ipv4_ports", PORTS, "--prtemca", "oob_tcp_disable_ipv6_family", "1")
        ran = pair.run("sums.py", environment=environment, options=options, timeout_s=240)
        assert ran.status not in (0, None), ran.output
        assert "StallError: MPI rank 0 on host node1: no word over MPI came from MPI ranks [2, 3]" in ran.output
        assert "firewalls" in ran.output
    finally:
        pair.on_each("iptables -F INPUT")


def test_a_host_that_is_killed_ends_the_job_within_the_stated_time(mortal: Pair) -> None:
    environment = {"COARSE_CONFIG": written(mortal.first, "killed.toml", LOSS_SETTINGS)}
    ran, took_s = mortal.lose_second(environment)
    assert ran.status not in (0, None), ran.output
    assert "StallError" in ran.output or "DeadRankError" in ran.output
    assert "rank 3" in ran.output or "MPI ranks" in ran.output
    assert took_s < LOSS_S, f"ended after {took_s:.0f} s"
