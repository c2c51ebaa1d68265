"""The wheel on a host that has nothing but an interpreter: installed by pip from files that were brought in."""

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.guest import Guest
from tests.hosts.initramfs import SHARE
from tests.hosts.machine import MachinePlan
from tests.support.launch import REPOSITORY

ENVIRONMENT = "/run/tmp/venv"
EXTRAS = "mpi,command"
"""What `coarse check`, `coarse run` and mpirun need beside numpy and mpi4py."""
HIDDEN = f"mount -t tmpfs none {REPOSITORY}"
"""Nothing of the project's own files, nor of its environment, is there."""
SCRIPT = """
import coarse, numpy as np
coarse.init()
assert coarse.__file__.startswith("/run/tmp/venv/"), coarse.__file__
found = coarse.push_pull(np.full(1000, coarse.rank() + 1.0), "x", op=coarse.Sum)
assert (found == 3).all()
print(f"worker {coarse.rank()}: {found[0]}")
"""


@pytest.fixture(scope="module")
def guest(images: dict[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """Return a guest without the project, where the wheel and all that it needs are installed."""
    folder = tmp_path_factory.mktemp("packages")
    plan = MachinePlan(name="node1", memory_bytes=3 << 30)
    library = Path(sysconfig.get_path("stdlib"))
    with Guest(plan, folder, {library: images[library]}) as guest:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        wheels = guest.share / "wheels"
        subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, REPOSITORY], check=True)
        (wheel,) = wheels.glob("coarse*.whl")
        pinned = ["-c", REPOSITORY / "requirements.txt"]
        download = [*pip, "download", "--only-binary", ":all:", "-d", wheels, *pinned]
        subprocess.run([*download, f"{wheel}[{EXTRAS}]"], check=True)
        guest.wait_until_ready()
        guest.run(HIDDEN, folder="/").checked()
        python = f"{sys.base_prefix}/bin/python3"
        install = f"{ENVIRONMENT}/bin/python -m pip install --quiet --no-index --find-links {SHARE}/wheels"
        guest.run(
            f"{python} -m venv {ENVIRONMENT} && {install} '{SHARE}/wheels/{wheel.name}[{EXTRAS}]'",
            folder="/", timeout_s=1200,
        ).checked()  # fmt: skip
        (guest.share / "script.py").write_text(SCRIPT)
        yield guest


def run(guest: Guest, command: str) -> str:
    """Run a command with the installed environment's programs first; return what it printed."""
    path = f"{ENVIRONMENT}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return guest.run(command, folder="/run/tmp", environment={"PATH": path}).checked()


def test_coarse_check_runs_from_the_wheel(guest: Guest) -> None:
    assert f"in {ENVIRONMENT}/lib" in run(guest, "COLUMNS=200 coarse check")


def test_coarse_run_starts_workers_and_devices_from_the_wheel(guest: Guest) -> None:
    printed = run(guest, f"coarse run --workers 2 --devices 1 {SHARE}/script.py")
    assert printed.count(": 3.0") == 2


def test_plain_mpirun_starts_ranks_from_the_wheel(guest: Guest) -> None:
    printed = run(guest, f"mpirun -n 4 --oversubscribe {ENVIRONMENT}/bin/python {SHARE}/script.py")
    assert printed.count(": 3.0") == 2
