"""What would be done for a cluster in a box, read without doing it."""

import re
import shlex
import subprocess
from ipaddress import IPv4Address, IPv4Network

import pytest

from coarse.launch.cluster.plan import (
    LAUNCHER,
    MEMORY_FOLDER,
    NODE_INTERFACE,
    ClusterPlan,
    enter_argv,
    hold_argv,
)
from coarse.launch.cluster.rate import LinkRate
from coarse.launch.cluster.shape import ClusterShape

SHAPES = [ClusterShape(num_nodes=nodes, workers_per_node=2, devices_per_node=1) for nodes in range(1, 5)]
RATE = LinkRate(100_000_000)


def plan_of(shape, rate=RATE, run_id="ab12cd"):
    return ClusterPlan(shape=shape, rate=rate, run_id=run_id)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.num_nodes)
def test_names_and_addresses_are_all_different_and_private(shape):
    plan = plan_of(shape)
    names = (plan.head, *plan.nodes)
    addresses = [IPv4Address(plan.address(name)) for name in names]
    assert len(set(names)) == len(set(addresses)) == shape.num_nodes + 1
    assert all(address.is_private and address in IPv4Network(plan.network) for address in addresses)
    assert not {IPv4Network(plan.network).network_address, IPv4Network(plan.network).broadcast_address} & set(addresses)


def test_no_name_of_two_clusters_is_the_same():
    first, second = (plan_of(SHAPES[3], run_id=run) for run in ("ab12cd", "ab12ce"))
    assert not {first.head, *first.nodes} & {second.head, *second.nodes}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.num_nodes)
def test_every_node_knows_every_name_of_the_cluster(shape):
    plan = plan_of(shape)
    entries = [line.split() for line in plan.hosts_text().splitlines()]
    assert ["127.0.0.1", "localhost"] in entries
    for name in (plan.head, *plan.nodes):
        assert [plan.address(name), name] in entries


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.num_nodes)
def test_both_ends_of_every_link_are_limited(shape):
    limits = [command for command in plan_of(shape).commands() if command.argv[0] == "tc"]
    assert [limit.argv[6:] for limit in limits] == [RATE.token_bucket()] * len(limits)
    ends = {(limit.place, limit.argv[4]) for limit in limits}
    plan = plan_of(shape)
    assert ends == {(plan.head, f"port{number}") for number in range(1, shape.num_nodes + 1)} | {
        (node, NODE_INTERFACE) for node in plan.nodes
    }


def test_without_a_rate_nothing_is_limited():
    assert not [command for command in plan_of(SHAPES[1], rate=None).commands() if command.argv[0] == "tc"]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.num_nodes)
def test_no_command_touches_an_interface_before_it_is_made_or_one_of_the_machines_own(shape):
    plan = plan_of(shape)
    made = {(place, "lo") for place in (plan.head, *plan.nodes)}
    for command in plan.commands():
        assert command.place in (plan.head, *plan.nodes)
        words = command.argv
        if "add" in words and "link" in words:
            made.add((command.place, words[3]))
            if "netns" in words:
                made.add((words[words.index("netns") + 1], words[words.index("peer") + 2]))
        elif words[0] == "ip" and words[1] == "link":
            assert (command.place, words[3]) in made
        elif "dev" in words:
            assert (command.place, words[words.index("dev") + 1]) in made


def test_no_command_gives_a_namespace_a_name_or_removes_anything_by_name():
    argvs = [command.argv for shape in SHAPES for command in plan_of(shape).commands()]
    argvs += [hold_argv("node1-x", own_processes=True), hold_argv("head-x", own_processes=False)]
    assert not [argv for argv in argvs if {"netns", "add"} <= set(argv[:3]) or {"del", "delete"} & set(argv)]
    assert not [option for argv in argvs for option in argv if re.match(r"--(net|uts|mount|pid)=", option)]


def test_all_that_is_mounted_lies_over_shared_memory_or_the_names_of_hosts():
    mounts = [command.argv for command in plan_of(SHAPES[3]).commands() if command.argv[0] == "mount"]
    for argv in mounts:
        assert argv[-1].startswith(MEMORY_FOLDER) or argv[-1] == "/etc/hosts"


def test_the_agent_enters_the_node_that_it_is_told_and_no_other(tmp_path):
    plan = plan_of(SHAPES[1])
    agent = tmp_path / "agent"
    agent.write_text(plan.agent_text(dict(zip(plan.nodes, ("4711", "4712"), strict=True))))
    agent.chmod(0o755)
    fake = tmp_path / "nsenter"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    command = 'export A="b c"; /bin/prted --x "1 2"'
    for node, holder in zip(plan.nodes, ("4711", "4712"), strict=True):
        done = subprocess.run(
            [agent, node, command],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines() == [*enter_argv(holder, own_processes=True)[1:], "sh", "-c", command]
    refused = subprocess.run([agent, "node3-ab12cd", command], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "no node node3-ab12cd in this cluster" in refused.stderr


def test_mpirun_is_told_of_the_agent_and_of_the_clusters_network_only():
    options = shlex.join(plan_of(SHAPES[1]).mpirun_options())
    assert "--prtemca plm_ssh_agent /dev/shm/coarse-cluster/agent" in options
    assert "--prtemca prte_if_include 10.99.0.0/24" in options
    assert "--mca btl_tcp_if_include 10.99.0.0/24" in options


def test_the_launchers_socket_fits_into_the_address_of_a_unix_socket():
    assert len(f"/proc/{2**22}/root{LAUNCHER}") < 108
