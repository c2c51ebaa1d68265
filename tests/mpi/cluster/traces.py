"""What a cluster in a box could leave on this machine, and what of it is there now."""

import os
import subprocess
from pathlib import Path

import psutil


def traces() -> dict[str, object]:
    """What a cluster could leave: named namespaces, interfaces, mounts, files."""
    named = [folder for folder in (Path("/etc/netns"), Path("/run/netns")) if folder.is_dir()]
    return {
        "namespaces": sorted(str(path) for folder in named for path in folder.iterdir()),
        "interfaces": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "mounts": sorted(line.split(maxsplit=3)[3] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "hosts": Path("/etc/hosts").read_bytes(),
        "memory": sorted(path.name for path in Path("/dev/shm").glob("*node*")),
        "limits": subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True, check=True).stdout,
    }


def processes_in(namespaces: set[str]) -> list[int]:
    """Processes of this machine in one of the network namespaces."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and os.readlink(entry / "ns" / "net") in namespaces:
                found.append(int(entry.name))
        except OSError:  # ended meanwhile
            continue
    return found


def namespaces_in(folder: Path) -> set[str]:
    """The network namespaces that the ranks of a job have written into its folder."""
    return {path.read_text() for path in folder.glob("namespace*")}


def children() -> set[int]:
    """Processes below this one, of whatever depth."""
    return {process.pid for process in psutil.Process().children(recursive=True)}
