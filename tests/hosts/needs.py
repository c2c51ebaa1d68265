"""Programs and files of Debian that guests are made of, and the command that installs those that are missing."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "modprobe": "kmod",
    "ndctl": "ndctl",
    "daxctl": "daxctl",
    "numactl": "numactl",
    "mkfs.ext4": "e2fsprogs",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
    "ip": "iproute2",
    "iptables": "iptables",
    "setpriv": "util-linux",
    "slurmctld": "slurm-wlm",
    "munged": "munge",
}
"""Debian's package of each program; guests find the programs in the root folder of the machine that starts them."""

PMIX_PACKAGE = "libpmix-dev"
"""Without it Slurm's plugin does not find PMIx."""

KERNEL_PACKAGE = "linux-image-amd64"
_BOOT = Path("/boot")
_MODULES = Path("/lib/modules")
_LIBRARIES = Path("/usr/lib")
_FOLDERS = os.pathsep.join(("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin"))


@dataclass(frozen=True)
class Kernel:
    """A kernel that a guest boots, whose modules lie beside it."""

    version: str
    image: Path


def program(name: str) -> str | None:
    """Return the path of a program, in folders of root's programs too, or None."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), _FOLDERS)))


def kernels() -> list[Kernel]:
    """Return the kernels of this machine that have their image and modules, the newest name last."""
    found = (Kernel(version=path.name.removeprefix("vmlinuz-"), image=path) for path in sorted(_BOOT.glob("vmlinuz-*")))
    return [kernel for kernel in found if (_MODULES / kernel.version / "modules.dep").is_file()]


def missing_packages() -> list[str]:
    """Return the packages to install before a guest can boot; none: all is here."""
    packages = [package for name, package in PACKAGES.items() if program(name) is None]
    if not any(_LIBRARIES.glob("*/libpmix.so")):
        packages.append(PMIX_PACKAGE)
    return packages if kernels() else [*packages, KERNEL_PACKAGE]


def install_line(packages: list[str]) -> str:
    """Return the command that installs the packages."""
    return f"apt-get install -y --no-install-recommends {' '.join(packages)}"
