"""The initramfs of a guest: busybox, the modules that mount the host's files, and a script that goes over to them."""

import gzip
import shlex
import shutil
import subprocess
from pathlib import Path

from tests.hosts.needs import Kernel, program

MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
"""Modules that the guest needs before it sees the host's; it loads others from there."""

ROOT_TAG, SHARE_TAG = "root", "share"
SHARE = "/run/share"
"""Where a guest sees the folder that it shares with the host and with other guests."""

_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in {modules}; do insmod /modules/$module || echo "init: $module does not load"; done
mkdir -p /host /written /new
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro {root} /host
mount -t tmpfs -o size=1g written /written
mkdir /written/upper /written/work
mount -t overlay -o lowerdir=/host,upperdir=/written/upper,workdir=/written/work root /new
for folder in proc sys dev; do mount --move /$folder /new/$folder; done
mount -t tmpfs run /new/run
mkdir -p /new/dev/shm /new/dev/pts /new/run/share /new/run/tmp /new/run/sshd /new/run/lock
mount -t tmpfs shm /new/dev/shm
mount -t devpts pts /new/dev/pts
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=none {share} /new/run/share
exec switch_root /new {command}
"""


def write_initramfs(path: Path, kernel: Kernel, command: list[str]) -> None:
    """Write the compressed archive from which a guest boots; `command` is its first process on the host's files.

    Raises:
        subprocess.CalledProcessError: modprobe does not know a module, or cpio fails.
    """
    folder = path.with_name(path.name + ".d")
    for name in ("bin", "proc", "sys", "dev", "modules"):
        (folder / name).mkdir(parents=True)
    shutil.copy(_known("busybox"), folder / "bin" / "busybox")
    modules = _module_files(kernel)
    for module in modules:
        shutil.copy(module, folder / "modules" / module.name)
    init = folder / "init"
    names = " ".join(module.name for module in modules)
    init.write_text(_INIT.format(modules=names, root=ROOT_TAG, share=SHARE_TAG, command=shlex.join(command)))
    init.chmod(0o755)
    files = b"\0".join(str(entry.relative_to(folder)).encode() for entry in sorted(folder.rglob("*")))
    packed = subprocess.run(
        [_known("cpio"), "--null", "--create", "--format=newc", "--quiet"],
        cwd=folder, input=files, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    path.write_bytes(gzip.compress(packed.stdout, compresslevel=1))
    shutil.rmtree(folder)


def _module_files(kernel: Kernel) -> list[Path]:
    """Return the files of MODULES and of all that they depend on, in the order in which they load."""
    found: dict[str, None] = {}
    for module in MODULES:
        printed = subprocess.run(
            [_known("modprobe"), "--set-version", kernel.version, "--show-depends", module],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found |= dict.fromkeys(line.split()[1] for line in printed.stdout.splitlines() if line.startswith("insmod"))
    return [Path(name) for name in found]


def _known(name: str) -> str:
    path = program(name)
    assert path is not None, f"{name} is not installed"
    return path
