"""The first process of a guest on the host's files: prepares the guest and runs what the host asks for.

Its argument is JSON: the guest's name, the address of each guest of the network by its name, and the folders of which
the machine has images, in the order of its disks. Requests and answers are lines of JSON over a port of virtio-serial;
each command has a shell and a session of its own, and several may be under way.
"""

import json
import os
import shlex
import signal
import string
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

PORT = "agent"
"""The name of the port, as the guest's machine has it."""

PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MODULES = ("virtio_net", "virtio_console", "virtio_blk", "nfit", "nd_pmem", "device_dax", "dax_pmem", "kmem", "ext4",
           "cxl_acpi", "cxl_pci", "cxl_mem", "cxl_port", "cxl_pmem")  # fmt: skip
_ENDED_S = 5.0


def prepare(name: str, addresses: dict[str, str], folders: list[str]) -> None:
    """Load drivers, mount the images, and give the guest its name and its place in the network."""
    for module in MODULES:
        _quietly(f"modprobe {module}")
    for letter, folder in zip(string.ascii_lowercase, folders, strict=False):
        _quietly(f"mount -o ro /dev/vd{letter} {shlex.quote(folder)}")
    _quietly(f"hostname {name}; ip link set lo up")
    hosts = ["127.0.0.1 localhost", *(f"{address} {host}" for host, address in addresses.items())]
    Path("/etc/hosts").write_text("\n".join(hosts) + "\n")
    Path("/etc/hostname").write_text(name + "\n")
    Path("/etc/resolv.conf").unlink(missing_ok=True)
    if name in addresses:
        _quietly(f"ip link set eth0 up; ip addr add {addresses[name]}/24 dev eth0")


def serve(port: BinaryIO) -> None:
    """Answer requests until the host ends the guest."""
    answering = threading.Lock()

    def answer(document: dict[str, Any]) -> None:
        with answering:
            port.write(json.dumps(document).encode() + b"\n")
            port.flush()

    answer({"ready": True})
    for line in iter(port.readline, b""):
        request = json.loads(line)
        threading.Thread(target=lambda asked=request: answer(run(asked)), daemon=True).start()


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run a command in a shell and return its status and output; a command past its time is killed: status None."""
    environment = {"PATH": PATHS, "HOME": "/root", "TMPDIR": "/run/tmp", "LANG": "C.UTF-8", **request["environment"]}
    process = subprocess.Popen(
        ["/bin/bash", "-c", request["command"]], env=environment, cwd=request["folder"], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    written, standing = bytearray(), ""
    reader = threading.Thread(target=lambda: _read(process.stdout, written), daemon=True)
    reader.start()
    try:
        status = process.wait(request["timeout_s"])
    except subprocess.TimeoutExpired:
        status = None
        standing = _standing()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    reader.join(_ENDED_S)  # a command may leave processes in the background that keep the pipe
    return {"id": request["id"], "status": status, "output": bytes(written).decode(errors="replace") + standing}


def _standing() -> str:
    """Return where each process of the guest stands: a line for each of its threads."""
    lines = ["", "out of time; processes of the guest, with each thread's state and the kernel's function:"]
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if command:  # kernel threads have none
                tasks = list((folder / "task").iterdir())
                states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
                waits = [f"{state} {(task / 'wchan').read_text()}" for state, task in zip(states, tasks, strict=True)]
                lines.append(f"  {folder.name} {command[:300]}: {', '.join(waits)}")
        except OSError:  # it has ended meanwhile
            continue
    return "\n".join(lines) + "\n"


def _read(pipe: BinaryIO | None, into: bytearray) -> None:
    assert pipe is not None
    while part := os.read(pipe.fileno(), 1 << 16):
        into += part


def _quietly(command: str) -> None:
    subprocess.run(["/bin/bash", "-c", command], env={"PATH": PATHS}, check=False, stderr=subprocess.DEVNULL)


def _port() -> Path:
    for known in Path("/sys/class/virtio-ports").iterdir():
        if (known / "name").read_text().strip() == PORT:
            return Path("/dev") / known.name
    raise FileNotFoundError(f"no port {PORT!r} of virtio-serial")


def main(arguments: list[str]) -> None:
    os.environ["PATH"] = PATHS
    prepare(**json.loads(arguments[0]))
    descriptor = os.open(_port(), os.O_RDWR)
    serve(os.fdopen(descriptor, "r+b", buffering=0))


if __name__ == "__main__":
    main(sys.argv[1:])
