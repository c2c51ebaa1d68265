"""A cluster in a box: nodes that have only a network in common, and that leave nothing behind.

It needs root, and a kernel that permits namespaces. Where there is neither, the tests check that the command
says so, and are skipped by name; whether there is, is found out without our code.
"""

import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coarse.errors import ClusterError
from coarse.launch.cluster.box import ClusterBox
from coarse.launch.cluster.interfaces import crossed
from coarse.launch.cluster.plan import AGENT, ClusterPlan, Command
from coarse.launch.cluster.rate import rate_from_text
from coarse.launch.cluster.shape import ClusterShape
from coarse.launch.mpirun import mpirun_beside
from tests.mpi.cluster.doorman import SOCKET, Doorman
from tests.mpi.cluster.traces import children, namespaces_in, processes_in, traces
from tests.support.claims import IN_TIME_S, read_reports
from tests.support.launch import REPOSITORY, Completed, complete

HERE = Path(__file__).parent
RATE = "400mbit"
TIMEOUT_S = 120.0
GONE_S = 30.0
"""How soon a cluster whose launcher was killed must be gone, on cores that others use too; left alone it never is."""
POLL_S = 0.02
OVERHEAD = 0.08
"""Headers of Ethernet, IP and TCP and acknowledgements are 4.6 % of full packets; the rest is MPI's start."""
TINY = ("--steps", "5", "--layers", "1", "--width", "16", "--context", "16", "--batch", "8", "--no-exposed")


def coarse_run(*arguments: object) -> Completed:
    """`coarse run` with these arguments, in the way of all tests here."""
    return complete([sys.executable, "-m", "coarse", "run", *map(str, arguments)], timeout_s=TIMEOUT_S)


@pytest.fixture(scope="module")
def permitted(tmp_path_factory):
    """Skips where this machine or user cannot have namespaces, after the command has said that in so many words."""
    commands = (
        "ip link add trunk type bridge",
        "ip link add port type veth peer name other",
        "tc qdisc add dev other root tbf rate 1mbit burst 4kb latency 50ms",
        "mount -t tmpfs none /dev/shm",
    )
    asked = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "sh", "-c", " && ".join(commands)]
    try:
        refused = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False).returncode != 0
    except FileNotFoundError:
        refused = True
    if not refused:
        return
    script = tmp_path_factory.mktemp("refused") / "train.py"
    script.touch()
    completed = coarse_run("--cluster", "2x2", script)
    assert completed.returncode == 2
    assert re.search(r"coarse: .*(needs root|needs the programs|was refused|were wanted)", completed.stderr)
    pytest.skip(f"no namespaces here: {completed.stderr.strip()}")


@pytest.fixture
def untouched(permitted):
    """After the test all that could have been left on this machine is as it was before."""
    before = traces()
    yield
    assert traces() == before


@pytest.fixture(scope="module")
def claims(permitted, tmp_path_factory):
    """What all workers of a cluster of 2 x 2 said, and the job's output."""
    folder = tmp_path_factory.mktemp("claims")
    rate = rate_from_text(RATE)
    program = HERE / "cluster_claims.py"
    completed = coarse_run("--cluster", "2x2", "--rate", RATE, program, folder, rate.bytes_per_s)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, 4), completed, json.loads((folder / "measured.json").read_text())


@pytest.mark.parametrize(
    "claim",
    [
        "workers_of_a_node_see_each_other_and_no_others",
        "nodes_share_files_but_neither_memory_nor_processes",
        "sums_over_the_network_are_numpys",
        "each_node_sends_what_a_ring_of_nodes_must_and_no_faster_than_its_link",
        "collectives_cross_the_interface_with_what_their_formulas_say",
    ],
)
def test_on_two_nodes(claims, claim):
    reports, _, measured = claims
    assert not any(reports[claim]), "\n".join([*reports[claim], str(measured)])


def test_the_kernels_count_of_a_nodes_bytes_is_what_coarse_carried_and_protocol_headers(claims):
    _, completed, measured = claims
    rows = [line.split() for line in completed.stdout.splitlines() if line.startswith("node") and "%" in line]
    assert len(rows) == 2, completed.stdout
    for _, *megabytes, beyond, reduced in rows:
        assert reduced == "0.000"
        received, sent, carried_received, carried_sent = map(float, megabytes)
        assert carried_sent > 2 * measured["sent_bytes"] / 1e6  # two push_pulls of the known bytes, and smaller ones
        assert carried_received < received < (1 + OVERHEAD) * carried_received
        assert carried_sent < sent < (1 + OVERHEAD) * carried_sent
        assert 0 < float(beyond.rstrip("%")) < 100 * OVERHEAD
    assert f"(measured, cluster in a box, links of {RATE} in each direction)" in completed.stdout


@pytest.fixture
def adding(tmp_path):
    """A script for four workers."""
    script = tmp_path / "add.py"
    script.write_text(
        "import coarse, numpy as np\ncoarse.init()\n"
        "found = coarse.push_pull(np.full(5000, 10.0 ** coarse.rank()), 'x', op=coarse.Sum)\n"
        "assert (found == 1111).all()\nprint('sum is right')\n"
    )
    return script


@pytest.mark.test_all
def test_the_same_script_runs_by_mpirun_and_a_hostfile(untouched, tmp_path, adding):
    completed = by_hostfile(tmp_path, adding)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("sum is right") == 4  # the other half of the ranks are memory devices


def test_a_script_that_raises_ends_plain_mpirun_on_two_nodes_at_once(untouched, tmp_path, adding):
    """Nothing that ranks leave behind holds the streams that mpirun waits for."""
    adding.write_text(adding.read_text().replace("1111", "1112"))
    began_s = time.monotonic()
    completed = by_hostfile(tmp_path, adding)
    assert time.monotonic() - began_s < IN_TIME_S
    assert completed.returncode == 1
    assert "AssertionError" in completed.stderr
    assert "is killed" not in completed.stderr


def by_hostfile(tmp_path: Path, script: Path) -> Completed:
    """Run a script on four ranks of each of two nodes by plain mpirun."""
    shape = ClusterShape(num_nodes=2, workers_per_node=2, devices_per_node=2)
    plan = ClusterPlan(shape=shape, rate=None, run_id=secrets.token_hex(3))
    hostfile = tmp_path / "hosts"
    hostfile.write_text("".join(f"{node} slots=4\n" for node in plan.nodes))
    command = [mpirun_beside(sys.executable, os.environ), *plan.mpirun_options()]
    command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command += ["-n", "8", "--hostfile", str(hostfile), "--map-by", "ppr:4:node", "--bind-to", "none"]
    with ClusterBox(plan) as box:
        return complete(box.inside([*command, sys.executable, str(script)]), timeout_s=TIMEOUT_S)


def torchrun_on_two_nodes(folder: Path, how: str, settings: str = "hosts = {hosts}") -> list[Completed]:
    """What torchrun's two workers of each node print and end with; mpirun gets from node to node by a doorman.

    In the settings of [launch] `{hosts}` and `{swapped}` are the nodes' names, in order and not.
    """
    shape = ClusterShape(num_nodes=2, workers_per_node=2, devices_per_node=1)
    plan = ClusterPlan(shape=shape, rate=None, run_id=secrets.token_hex(3))
    hosts, swapped = json.dumps(plan.nodes), json.dumps(plan.nodes[::-1])
    stated = settings.format(hosts=hosts, swapped=swapped)
    (folder / "coarse.toml").write_text(f"startup_timeout_s = 10\n[launch]\ndevices = 1\n{stated}\n")
    environ = {"COARSE_CONFIG": str(folder / "coarse.toml"), "PYTHONPATH": str(REPOSITORY)}
    options = iter(plan.mpirun_options())
    for kind, name, value in zip(options, options, options, strict=True):
        environ[f"{'PRTE' if kind == '--prtemca' else 'OMPI'}_MCA_{name}"] = value
    environ["PRTE_MCA_plm_ssh_agent"] = f"{sys.executable} {HERE / 'doorman.py'} {SOCKET}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    torchrun += ["--master-addr", plan.address(plan.nodes[0])]
    told = ["env", *(f"{name}={value}" for name, value in environ.items())]
    program = [str(HERE.parent / "torch" / "torchrun_worker.py"), how]

    with ClusterBox(plan) as box, Doorman(box), ThreadPoolExecutor() as pool:

        def run(number: int) -> Completed:
            command = [*told, *torchrun, "--node-rank", str(number), *program]
            return complete(box.inside([AGENT, plan.nodes[number], shlex.join(command)]), timeout_s=TIMEOUT_S)

        return list(pool.map(run, range(2)))


def test_torchruns_workers_of_two_nodes_are_workers_beside_memory_devices(untouched, tmp_path):
    first, second = torchrun_on_two_nodes(tmp_path, "process group")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert sorted(first.stdout.splitlines()) == ["worker 0 ends", "worker 1 ends"]
    assert sorted(second.stdout.splitlines()) == ["worker 2 ends", "worker 3 ends"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("is killed", "DeadRankError: rank 0: worker 3 (MPI rank 4) died"),
        pytest.param(
            "dies after 0.0 s", "MPI has not started within 10 s, since ranks of other hosts have not come",
            marks=pytest.mark.test_all,
        ),
    ],
)
def test_a_worker_of_torchrun_that_ends_badly_on_one_node_ends_those_of_the_other(untouched, tmp_path, how, words):
    first, second = torchrun_on_two_nodes(tmp_path, how)
    assert (first.returncode, second.returncode) == (1, 1)
    assert words in first.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("", "torchrun started workers on 2 nodes, and [launch] hosts names none"),
        ("hosts = {swapped}", "hosts in torchrun's order"),
    ],
)
@pytest.mark.test_all
def test_hosts_that_are_not_torchruns_are_an_error(untouched, tmp_path, settings, words):
    first, second = torchrun_on_two_nodes(tmp_path, "arrays", settings)
    assert (first.returncode, second.returncode) == (1, 1)
    assert words in first.stderr
    assert words in second.stderr


def test_four_nodes_with_one_device_each_add_as_one(untouched, adding):
    completed = coarse_run("--cluster", "4x1", "--devices", "1", adding)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("sum is right") == 4
    assert len(re.findall(r"^node\d-", completed.stdout, re.MULTILINE)) == 4


@pytest.mark.slow
@pytest.mark.test_all
def test_training_on_two_nodes_is_training_on_one(untouched, tmp_path):
    losses = {}
    for name, options in (("box", ("--cluster", "2x1")), ("here", ("--workers", "2", "--devices", "2"))):
        script = REPOSITORY / "experiments" / "train_gpt.py"
        completed = coarse_run(*options, script, *TINY, "--out", tmp_path / name)
        assert completed.returncode == 0, completed.stderr
        document = json.loads((tmp_path / name / "coarse-worker0.json").read_text())
        losses[name] = [step["loss"] for step in document["steps"]]
    assert len(losses["box"]) == 5
    assert losses["box"] == pytest.approx(losses["here"], rel=1e-6)


@pytest.mark.parametrize(
    ("victim", "words"),
    [("worker", r"worker 2 \(MPI rank 4\)"), pytest.param("device", "memory device [23]", marks=pytest.mark.test_all)],
)
def test_a_death_on_one_node_is_named_on_the_other_and_ends_everything(untouched, tmp_path, victim, words):
    completed = coarse_run("--cluster", "2x2", HERE / "cluster_death.py", tmp_path, victim)
    assert completed.returncode == 137, completed.stderr
    for rank in (0, 1):  # workers of the other node
        error = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert error["kind"] == "DeadRankError"
        assert re.search(words, error["text"])
        assert error["waited_s"] < IN_TIME_S
    assert len(namespaces_in(tmp_path)) == 2
    assert not processes_in(namespaces_in(tmp_path))


def test_a_script_that_fails_before_init_ends_the_job(untouched, tmp_path):
    script = tmp_path / "fail.py"
    script.write_text("import os, sys, coarse\nif os.environ['PMIX_RANK'] == '2':\n    sys.exit(5)\ncoarse.init()\n")
    completed = coarse_run("--cluster", "2x1", script)
    assert completed.returncode == 5, completed.stderr
    assert "MPI rank 2 ended with status 5 before coarse.init()" in completed.stderr


def started(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """A job of two nodes that goes on for ever, once it has begun to."""
    command = (sys.executable, "-m", "coarse", "run", "--cluster", "2x1", *options)
    with (folder / "printed").open("wb") as printed:
        launcher = subprocess.Popen(
            [*command, str(HERE / "cluster_death.py"), str(folder), "nobody"],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=printed,
            stderr=printed,
        )
    until_s = time.perf_counter() + TIMEOUT_S
    while len(namespaces_in(folder)) < 2:
        assert time.perf_counter() < until_s, (folder / "printed").read_text()
        assert launcher.poll() is None, (folder / "printed").read_text()
        time.sleep(POLL_S)
    return launcher


class HalfPlan(ClusterPlan):
    """The second node cannot be joined to the bridge."""

    def node_commands(self, node: str, holder: str) -> list[Command]:
        commands = super().node_commands(node, holder)
        return [*commands[:4], Command(node, ("false",))] if node == self.nodes[1] else commands


def test_a_cluster_that_cannot_be_made_whole_is_taken_down(untouched):
    shape = ClusterShape(num_nodes=2, workers_per_node=1, devices_per_node=1)
    plan = HalfPlan(shape=shape, rate=rate_from_text(RATE), run_id=secrets.token_hex(3))
    before = children()
    with pytest.raises(ClusterError, match=f"`false` on {plan.nodes[1]} was refused"), ClusterBox(plan):
        pass
    assert children() == before


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(number, marks=pytest.mark.test_all) for number in (signal.SIGTERM, signal.SIGINT))],
    ids=lambda number: number.name,
)
def test_whatever_ends_the_launcher_ends_the_cluster(untouched, tmp_path, number):
    launcher = started(tmp_path)
    assert processes_in(namespaces_in(tmp_path))
    launcher.send_signal(number)
    launcher.wait(GONE_S)
    until_s = time.perf_counter() + GONE_S
    while processes_in(namespaces_in(tmp_path)):
        assert time.perf_counter() < until_s, "processes outlive the cluster"
        time.sleep(POLL_S)


def test_a_node_that_is_lost_ends_the_job_otherwise_than_well(untouched, tmp_path):
    launcher = started(tmp_path)
    lost = processes_in({(tmp_path / "namespace1").read_text()})
    (holder,) = [pid for pid in lost if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"unshare\0")]
    os.kill(holder, signal.SIGKILL)
    assert launcher.wait(TIMEOUT_S) not in (0, 2)
    assert re.search(r"^node2-\w+ +not told", (tmp_path / "printed").read_text(), re.MULTILINE)
    assert not processes_in(namespaces_in(tmp_path))


def disturbed(folder: Path, *options: str, how: str) -> tuple[int, str]:
    """Status and output of a job of two nodes that commits.

    At step 20 the second is `lost`, or all `preempted`, or the `agent` is killed by which mpirun has reached the first.
    """
    command = [sys.executable, "-m", "coarse", "run", "--cluster", "2x1", *options]
    with (folder / "printed").open("wb") as printed:
        launcher = subprocess.Popen(
            [*command, str(HERE / "cluster_commits.py")], cwd=REPOSITORY, stdout=printed, stderr=printed,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
    until_s = time.perf_counter() + TIMEOUT_S
    there = re.compile(r"second node in (net:\[\d+\]) at step (20|25|30)$", re.MULTILINE)
    while not there.search((folder / "printed").read_text()):
        assert time.perf_counter() < until_s, (folder / "printed").read_text()
        assert launcher.poll() is None, (folder / "printed").read_text()
        time.sleep(POLL_S)
    node = re.findall(r"second node in (net:\[\d+\])", (folder / "printed").read_text())[-1]
    lost = processes_in({node})
    (holder,) = [pid for pid in lost if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"unshare\0")]
    if how == "lost":
        os.kill(holder, signal.SIGKILL)
    elif how == "agent":
        os.kill(agent_below(launcher.pid), signal.SIGKILL)
    else:
        launcher.send_signal(signal.SIGTERM)
    return launcher.wait(TIMEOUT_S), (folder / "printed").read_text()


def agent_below(launcher: int) -> int:
    """The shell that mpirun, a child of the launcher, has started in place of ssh."""
    lines = {entry: entry.joinpath("cmdline").read_bytes().split(b"\0") for entry in processes_below(launcher)}
    return next(int(entry.name) for entry, line in lines.items() if line[1:2] and line[1].endswith(b"/agent"))


def processes_below(pid: int) -> list[Path]:
    """Entries of /proc of a process's children, and theirs."""
    below = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [entry for child in below for entry in (Path(f"/proc/{child}"), *processes_below(child))]


def test_a_job_whose_mpirun_loses_its_agent_has_not_ended_well(untouched, tmp_path):
    # mpirun takes a killed agent for a daemon that never came, ends all ranks, and ends with 0 itself.
    status, text = disturbed(tmp_path, how="agent")
    assert "A daemon failed to report back" in text
    assert status == 1, text


@pytest.mark.test_all
def test_a_job_whose_mpirun_loses_its_agent_goes_on(untouched, tmp_path):
    status, text = disturbed(tmp_path, "--restarts", "2", how="agent")
    assert status == 0, text
    assert re.search(r"MPI rank \d was ended; the job starts again, 1 of 2", text)
    assert len(sums_of(text)) == 2


def sums_of(text: str) -> list[str]:
    """What workers printed of their parameters."""
    return sorted(re.findall(r"worker \d has \w{64}", text))


def test_a_job_goes_on_where_a_node_is_lost_and_a_pool_has_its_states(untouched, tmp_path):
    config = tmp_path / "pool.toml"
    config.write_text('[faults]\nplace = "pool"\n')
    status, text = disturbed(tmp_path, "--restarts", "2", "--config", str(config), how="lost")
    assert status == 0, text
    assert re.search(r"node2-\w+ was lost; the job starts again, 1 of 2", text)
    went_on = re.search(r"went on from step (\d+);.* started ([\d.]+)", text)
    assert went_on is not None, text
    assert int(went_on[1]) >= 20
    quiet = coarse_run("--workers", 2, "--devices", 2, HERE / "cluster_commits.py")
    assert sums_of(text) == sums_of(quiet.stdout)
    assert len(sums_of(text)) == 2


@pytest.mark.test_all
def test_a_job_goes_on_from_disk_where_a_node_is_lost_with_its_memory(untouched, tmp_path):
    lost, text = disturbed(tmp_path, "--restarts", "2", how="lost")
    assert lost == 1
    assert "the states of its workers were lost with it, and there is no copy on disk" in text
    keep = str(tmp_path / "kept")
    preempted, text = disturbed(tmp_path, "--keep", keep, how="preempted")
    assert preempted == 75, text
    status, text = disturbed(tmp_path, "--restarts", "2", "--keep", keep, "--resume", keep, how="lost")
    assert status == 0, text
    assert re.search(r"was lost; the job goes on from version \d\d of .*/kept, and \d+ committed later", text)
    quiet = coarse_run("--cluster", "2x1", HERE / "cluster_commits.py")
    assert sums_of(text) == sums_of(quiet.stdout)


@pytest.mark.test_all
def test_two_clusters_at_once_do_not_meet(untouched, tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    launchers = [started(folder) for folder in folders]
    first, second = map(namespaces_in, folders)
    for launcher in launchers:
        launcher.send_signal(signal.SIGINT)
    assert [launcher.wait(TIMEOUT_S) for launcher in launchers] == [128 + signal.SIGINT] * 2
    assert not first & second
    assert not processes_in(first | second)


def without(*capabilities: str) -> Sequence[str]:
    """What, before a command, takes capabilities from it."""
    return ("setpriv", "--bounding-set", ",".join(f"-{name}" for name in capabilities))


def test_without_the_capability_the_command_says_what_it_needs(permitted, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    command = (sys.executable, "-m", "coarse", "run", "--cluster", "2x2", str(script))
    completed = complete([*without("net_admin"), *command])
    assert completed.returncode == 2
    assert "this process lacks CAP_NET_ADMIN; run it as root" in completed.stderr


@pytest.fixture
def user_namespaces(permitted):
    """Skips where the kernel has none, or forbids them."""
    asked = subprocess.run(
        ["unshare", "--user", "--map-root-user", "true"], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        pytest.skip(f"no user namespaces here: {asked.stderr.strip()}")


def test_a_kernel_that_refuses_namespaces_is_quoted(user_namespaces, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    command = (sys.executable, "-m", "coarse", "run", "--cluster", "2x2", str(script))
    forbid = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    completed = complete(["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", *command])
    assert completed.returncode == 2
    assert re.search("coarse: namespaces for head-.* unshare failed: .* does not permit it", completed.stderr)


def test_a_user_namespace_stands_in_for_root(user_namespaces, untouched, tmp_path):
    script = tmp_path / "add.py"
    script.write_text(
        "import coarse, numpy as np\ncoarse.init()\nprint('sum', coarse.push_pull(np.ones(3), 'x', op=coarse.Sum)[0])\n"
    )
    command = (sys.executable, "-m", "coarse", "run", "--cluster", "2x1", "--rate", RATE, str(script))
    completed = complete(["unshare", "--user", "--map-root-user", *command], timeout_s=TIMEOUT_S)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("sum 2.0\n") == 2


def test_own_interfaces_are_read_like_those_of_nodes():
    found = crossed(Path("/proc/net/dev").read_text(), "lo")
    assert found.received_bytes == found.sent_bytes
