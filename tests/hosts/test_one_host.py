"""Memory devices on what a kernel has: nodes without processors, devdax, DAX file systems, and a CXL memory expander.

One guest has all of it: NUMA node 1 without processors, two NVDIMMs, of which one is a devdax device and the other has
ext4 with -o dax, and a CXL Type 3 device whose persistent region the kernel's own driver makes.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.guest import Guest
from tests.hosts.jobs import MIB, configuration, mpirun, sparse
from tests.hosts.machine import LABEL_BYTES, MachinePlan, Nvdimm, Type3
from tests.support.launch import REPOSITORY

POOL_BYTES = 256 * MIB
DAX, CXL = "dax:/dev/dax0.0", "dax:/dev/dax2.0"
FILE = "/mnt/pool"
CAPACITY = f"device_capacity_bytes = {64 * MIB}"
SMALL = f"device_capacity_bytes = {32 * MIB}"
"""For node 2: of the expander's 250 MiB the kernel takes what fills whole blocks of 128 MiB."""

PREPARED = f"""
ndctl create-namespace -f -e namespace0.0 -m devdax
ndctl create-namespace -f -e namespace1.0 -m fsdax
mkfs.ext4 -q -b 4096 /dev/pmem1 && mount -o dax /dev/pmem1 /mnt && truncate -s 200M {FILE}
cxl create-region -t pmem -m mem0 -d decoder0.0 -s {POOL_BYTES}
ndctl create-namespace -r region2 -m devdax
"""
REMOVE_S = 60.0
"""How long a job that nobody disturbs would last; the first sum comes within a minute."""


@pytest.fixture(scope="module")
def guest(images: dict[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    folder = tmp_path_factory.mktemp("one")
    nvdimms = tuple(Nvdimm(file=sparse(folder / f"nvdimm{n}", POOL_BYTES + LABEL_BYTES),
                           nbytes=POOL_BYTES + LABEL_BYTES) for n in range(2))  # fmt: skip
    expander = Type3(
        memory=sparse(folder / "expander", POOL_BYTES), labels=sparse(folder / "labels", LABEL_BYTES), nbytes=POOL_BYTES
    )
    plan = MachinePlan(name="node1", memory_bytes=2 << 30, far_bytes=1 << 30, nvdimms=nvdimms, expander=expander)
    with Guest(plan, folder, images) as guest:
        guest.wait_until_ready()
        guest.run(PREPARED).checked()
        yield guest


def sums(guest: Guest, name: str, *places: str, settings: str = CAPACITY) -> None:
    """Require that two workers' sums over devices in these places are right."""
    environment = configuration(guest, name, places, settings=settings)
    printed = guest.run(mpirun(2 + len(places), "sums.py"), environment=environment).checked()
    assert [json.loads(line)["sums"] for line in printed.splitlines() if line.startswith("{")] == ["right"] * 2


def test_the_kernel_has_the_memory_that_the_other_tests_use(guest: Guest) -> None:
    nodes = guest.run("numactl -H").checked()
    assert "node 1 cpus:\n" in nodes
    devices = json.loads(guest.run("daxctl list").checked())
    assert {device["chardev"]: device["mode"] for device in devices} == {"dax0.0": "devdax", "dax2.0": "devdax"}
    region = json.loads(guest.run("cxl list -R").checked())[0]
    assert (region["decode_state"], region["size"]) == ("commit", POOL_BYTES)
    assert "dax=always" in guest.run("mount").checked()


def test_coarse_check_lists_the_node_without_processors(guest: Guest) -> None:
    assert "no processors" in guest.run("python -m coarse check").checked()


def test_a_device_on_a_node_without_processors_has_all_its_pages_there_in_every_process(guest: Guest) -> None:
    environment = configuration(guest, "bound", ['memory = "numa:1"'], settings=CAPACITY)
    program = Path(__file__).parents[1] / "mpi" / "arrays" / "placed_memory.py"
    guest.run(mpirun(3, program, "/run/share/bound.json"), environment=environment).checked()
    found = json.loads((guest.share / "bound.json").read_text())
    assert found["policy"] == [2, [1]]  # MPOL_BIND
    assert set(found["nodes"]) == {1}
    assert len(found["maps"]) == 3
    for lines in found["maps"].values():
        assert [line.split()[1] for line in lines] == ["bind:1"]
        assert not any("N0=" in line for line in lines)


@pytest.mark.parametrize(
    "places",
    [
        [f'memory = "{DAX}"'],
        [f'memory = "{DAX}"\nmemory_bytes = {96 * MIB}',
         f'memory = "{DAX}"\nmemory_offset_bytes = {96 * MIB}\nmemory_bytes = {96 * MIB}'],
        [f'memory = "file:{FILE}"\nmemory_bytes = {96 * MIB}',
         f'memory = "file:{FILE}"\nmemory_offset_bytes = {96 * MIB}'],
        ['memory = "folder:/mnt"'],
        [f'memory = "{CXL}"'],
        [f'memory = "{CXL}"', f'memory = "{DAX}"', 'memory = "numa:1"'],
    ],
    ids=["devdax", "ranges of devdax", "ranges of a DAX file", "a folder with DAX", "a CXL region", "one of each"],
)  # fmt: skip
def test_sums_are_right_in(guest: Guest, places: list[str], request: pytest.FixtureRequest) -> None:
    sums(guest, request.node.callspec.id.replace(" ", "-"), *places)


def test_every_claim_of_push_and_pull_holds_on_devdax(guest: Guest) -> None:
    program = Path(__file__).parents[1] / "mpi" / "arrays" / "array_claims.py"
    environment = configuration(guest, "claims", [f'memory = "{DAX}"'])
    (guest.share / "claims").mkdir()
    environment["PYTHONPATH"] = str(REPOSITORY)
    guest.run(mpirun(3, program, "/run/share/claims"), environment=environment, timeout_s=1200.0).checked()
    for worker in range(2):
        reports = json.loads((guest.share / "claims" / f"worker{worker}.json").read_text())
        assert len(reports) > 20
        late = [text for text in reports.values() if text and "came after" not in text]  # no processor is in time here
        assert not late


def test_devices_that_overlap_are_refused_with_the_other_ones_rank(guest: Guest) -> None:
    places = [f'memory = "{DAX}"\nmemory_bytes = {96 * MIB}', f'memory = "{DAX}"\nmemory_offset_bytes = {94 * MIB}']
    ran = guest.run(mpirun(4, "sums.py"), environment=configuration(guest, "overlap", places))
    assert ran.status not in (0, None)
    assert f"memory of rank 3 is '{DAX} from byte {94 * MIB}', which rank 2 on the same host node1" in ran.output


def test_bytes_that_another_job_has_locked_are_refused_until_it_ends(guest: Guest) -> None:
    first = configuration(guest, "first", [f'memory = "{DAX}"\nmemory_bytes = {96 * MIB}'], settings=CAPACITY)
    second = configuration(guest, "second", [f'memory = "{DAX}"\nmemory_offset_bytes = {64 * MIB}'], settings=SMALL)
    running = guest.begin(mpirun(3, "until.py", REMOVE_S, "/run/tmp/first"), environment=first)
    guest.wait_for("/run/tmp/first0")
    refused = guest.run(mpirun(3, "sums.py"), environment=second)
    assert refused.status not in (0, None)
    assert "uses the device; name another one" in refused.output
    running.result().checked()
    guest.run(mpirun(3, "sums.py"), environment=second).checked()


def removed_under(guest: Guest, name: str, place: str, how: str, settings: str = CAPACITY) -> tuple[int | None, str]:
    """Return how a job ended whose device's memory was taken by a command after the first sum, and what it printed."""
    environment = configuration(guest, name, [place], settings=settings)
    running = guest.begin(mpirun(3, "until.py", REMOVE_S, f"/run/tmp/{name}"), environment=environment)
    guest.wait_for(f"/run/tmp/{name}0", f"/run/tmp/{name}1")
    guest.run(how).checked()
    ran = running.result()
    return ran.status, ran.output


def test_a_device_that_is_unbound_in_use_ends_a_rank_by_sigbus_and_the_others_by_a_typed_error(guest: Guest) -> None:
    unbind = "echo dax2.0 > /sys/bus/dax/drivers/device_dax/unbind"
    status, printed = removed_under(guest, "unbound", f'memory = "{CXL}"', unbind)
    guest.run("echo dax2.0 > /sys/bus/dax/drivers/device_dax/bind").checked()
    assert status not in (0, None), printed
    assert "Bus error" in printed
    dead = {line.split(" died")[0].split()[-1] for line in printed.splitlines() if "DeadRankError" in line}
    assert len(dead) == 1, printed  # all name the one that touched it
    assert printed.count("got DeadRankError") >= 1, printed
    sums(guest, "bound-again", f'memory = "{CXL}"')


def test_memory_that_is_taken_offline_in_use_moves_and_the_job_goes_on(guest: Guest) -> None:
    """The kernel moves the pages to another node against the policy; no byte is lost."""
    guest.run("daxctl reconfigure-device --mode=system-ram dax2.0").checked()
    try:
        sums(guest, "system-ram", 'memory = "numa:2"', settings=SMALL)
        status, printed = removed_under(
            guest, "offline", 'memory = "numa:2"', "daxctl offline-memory dax2.0", settings=SMALL
        )
        assert status == 0, printed
        assert printed.count("ended well") == 2
        refused = guest.run(mpirun(3, "sums.py"), environment=configuration(guest, "gone", ['memory = "numa:2"']))
        assert refused.status not in (0, None)
        assert "numa:2" in refused.output
        assert "ConfigError" in refused.output or "CapacityError" in refused.output
    finally:
        guest.run("daxctl reconfigure-device --mode=devdax --force dax2.0").checked()


@pytest.mark.parametrize(
    "options", [["--numa", "1"], ["/dev/dax0.0"], ["--file", FILE], ["/dev/dax2.0"]],
    ids=["numa", "devdax", "file", "cxl"],
)  # fmt: skip
def test_calibrate_measures_it_and_says_that_an_emulated_processor_did(guest: Guest, options: list[str]) -> None:
    saved = f"/run/share/calibrated-{'-'.join(options).strip('-').replace('/', '-')}.toml"
    command = f"python -m coarse calibrate {' '.join(options)} --overwrite --seconds 5 --repeats 2 --save {saved}"
    printed = guest.run(command).checked()
    assert "is a processor in software: these times are the emulator's and tell nothing of the memory" in printed
    assert "# Emulated: QEMU TCG" in (guest.share / Path(saved).name).read_text()
    predicted = guest.run(f"python -m coarse predict --machine {saved} --workers 2").checked()
    assert "coarse" in predicted
