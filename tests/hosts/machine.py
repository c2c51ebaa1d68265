"""The machine that QEMU emulates for a guest: its processors, memory, devices and network."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts.agent import PORT
from tests.hosts.initramfs import ROOT_TAG, SHARE_TAG
from tests.hosts.needs import Kernel

LABEL_BYTES = 2 << 20
"""The part of an NVDIMM's file that holds its namespaces' labels, behind the memory."""


@dataclass(frozen=True, kw_only=True)
class Nvdimm:
    """Persistent memory whose bytes are a file's; several guests may have the same file.

    The file's length less LABEL_BYTES is a multiple of 16 MiB.
    """

    file: Path
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Type3:
    """A CXL memory expander (Type 3) with persistent memory, below a host bridge of its own."""

    memory: Path
    labels: Path
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class MachinePlan:
    """A guest's machine. Memory in bytes; `far_bytes` is that of NUMA node 1, which has no processors."""

    name: str
    memory_bytes: int
    far_bytes: int = 0
    num_processors: int = 2
    nvdimms: tuple[Nvdimm, ...] = ()
    expander: Type3 | None = None
    addresses: dict[str, str] = field(default_factory=dict)
    """The address of each guest by its name; of at most two, which have one cable between them."""


def qemu_arguments(
    plan: MachinePlan, kernel: Kernel, *, folder: Path, share: Path, initramfs: Path, images: Iterable[Path]
) -> list[str]:
    """Return what follows QEMU's name; `folder` gets the guest's sockets, all guests see `share` and read `images`."""
    machine = "q35,nvdimm=on" if plan.nvdimms else "q35"
    if plan.expander is not None:
        machine += ",cxl=on"
    most = plan.memory_bytes + plan.far_bytes + sum(nvdimm.nbytes for nvdimm in plan.nvdimms) + (4 << 30)
    arguments = ["-accel", "tcg,thread=multi", "-cpu", "max", "-M", machine, "-smp", str(plan.num_processors)]
    arguments += ["-m", f"size={plan.memory_bytes + plan.far_bytes >> 20}M,slots=8,maxmem={most >> 20}M"]
    arguments += ["-nodefaults", "-display", "none", "-no-reboot", "-serial", f"file:{folder / 'console.txt'}"]
    arguments += ["-kernel", str(kernel.image), "-initrd", str(initramfs)]
    arguments += ["-append", "console=ttyS0 loglevel=5 panic=1 net.ifnames=0"]
    arguments += _processors_memory(plan) + _files(share)
    for number, image in enumerate(images):
        arguments += _disk(number, image)
    arguments += ["-chardev", f"socket,id=agent,path={folder / 'agent'},server=on,wait=off", "-device", "virtio-serial"]
    arguments += ["-device", f"virtserialport,chardev=agent,name={PORT}"]
    for number, nvdimm in enumerate(plan.nvdimms):
        arguments += _nvdimm(number, nvdimm)
    if plan.expander is not None:
        arguments += _expander(plan.expander)
    return arguments + (_cable(plan, share) if plan.addresses else [])


def _processors_memory(plan: MachinePlan) -> list[str]:
    near = ["-object", f"memory-backend-ram,id=near,size={plan.memory_bytes}"]
    near += ["-numa", f"node,nodeid=0,memdev=near,cpus=0-{plan.num_processors - 1}"]
    if not plan.far_bytes:
        return near
    far = ["-object", f"memory-backend-ram,id=far,size={plan.far_bytes}", "-numa", "node,nodeid=1,memdev=far"]
    return [*near, *far, "-numa", "dist,src=0,dst=1,val=20"]


def _files(share: Path) -> list[str]:
    root = f"local,path=/,mount_tag={ROOT_TAG},security_model=none,readonly=on,multidevs=remap"
    shared = f"local,path={share},mount_tag={SHARE_TAG},security_model=none"
    return ["-virtfs", root, "-virtfs", shared]


def _disk(number: int, image: Path) -> list[str]:
    drive = f"file={image},format=raw,if=none,id=disk{number},readonly=on,file.locking=off"
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive=disk{number}"]


def _nvdimm(number: int, nvdimm: Nvdimm) -> list[str]:
    backend = f"memory-backend-file,id=pmem{number},share=on,mem-path={nvdimm.file},size={nvdimm.nbytes}"
    device = f"nvdimm,id=nvdimm{number},memdev=pmem{number},unarmed=off,label-size={LABEL_BYTES}"
    return ["-object", backend, "-device", device]


def _expander(expander: Type3) -> list[str]:
    memory = f"memory-backend-file,id=cxl-memory,share=on,mem-path={expander.memory},size={expander.nbytes}"
    labels = f"memory-backend-file,id=cxl-labels,share=on,mem-path={expander.labels},size={LABEL_BYTES}"
    arguments = ["-object", memory, "-object", labels, "-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=bridge"]
    for port in (0, 1):  # a bridge of one port decodes nothing in Linux's eyes, and only what is decoded in QEMU's
        arguments += ["-device", f"cxl-rp,port={port},bus=bridge,id=port{port},chassis=0,slot={port + 2}"]
    arguments += ["-device", "cxl-type3,bus=port0,memdev=cxl-memory,lsa=cxl-labels,id=expander"]
    return [*arguments, "-M", "cxl-fmw.0.targets.0=bridge,cxl-fmw.0.size=4G"]


def _cable(plan: MachinePlan, share: Path) -> list[str]:
    """One end of the cable between two guests: a socket that the first listens at, and no port of this machine."""
    place = sorted(plan.addresses).index(plan.name)
    end = "on" if place == 0 else "off"
    cable = f"stream,id=cable,addr.type=unix,addr.path={share.parent / 'cable'},server={end}"
    card = f"virtio-net-pci,netdev=cable,mac=52:54:00:00:00:{place + 1:02x}"
    return ["-netdev", cable, "-device", card]
