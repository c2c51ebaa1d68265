"""Writes what the kernel says of device memory, asked from worker 0: policy and node of each page, by every process.

Arguments: the file to write to.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

import numpy as np

import coarse

_PAGE_BYTES = 4096
_SYS_GET_MEMPOLICY, _SYS_MOVE_PAGES = 239, 279  # x86-64
_MPOL_F_ADDR = 2


def policy_at(address: int) -> tuple[int, list[int]]:
    """The policy that governs an address, by get_mempolicy(2): its mode, and the nodes that it names."""
    mode, mask = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
    arguments = (ctypes.byref(mode), mask, ctypes.c_ulong(1024), ctypes.c_ulong(address), ctypes.c_ulong(_MPOL_F_ADDR))
    if ctypes.CDLL(None, use_errno=True).syscall(_SYS_GET_MEMPOLICY, *arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "get_mempolicy")
    return mode.value, [node for node in range(1024) if mask[node // 64] >> node % 64 & 1]


def nodes_of_pages(array: np.ndarray) -> list[int]:
    """The node of each page of an array, by move_pages(2) that moves none; below 0 where there is no page."""
    first = array.__array_interface__["data"][0]
    addresses = range(first - first % _PAGE_BYTES, first + array.nbytes, _PAGE_BYTES)
    pages, nodes = (ctypes.c_void_p * len(addresses))(*addresses), (ctypes.c_int * len(addresses))()
    arguments = (ctypes.c_int(0), ctypes.c_ulong(len(addresses)), pages, None, nodes, ctypes.c_int(0))
    if ctypes.CDLL(None, use_errno=True).syscall(_SYS_MOVE_PAGES, *arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "move_pages")
    return list(nodes)


def file_at(address: int) -> str:
    """The file that this process has mapped at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return line.split(maxsplit=5)[5].removesuffix(" (deleted)")
    raise LookupError(f"nothing is mapped at {address:#x}")


def mappings(file_name: str) -> dict[int, list[str]]:
    """Process id -> the lines of numa_maps about files whose name has `file_name` in it."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/numa_maps"):
        try:
            lines = [line for line in path.read_text().splitlines() if file_name in line]
        except OSError:  # ended meanwhile
            continue
        if lines:
            found[int(path.parent.name)] = lines
    return found


if __name__ == "__main__":
    coarse.init()
    array = coarse.device_array("x", (1 << 20,), np.float32)
    array[:] = coarse.rank()
    coarse.push_pull(array, "x")
    assert (array == (coarse.size() - 1) / 2).all()
    address = array.__array_interface__["data"][0]
    if coarse.rank() == 0:
        name = file_at(address)
        found = {
            "policy": policy_at(address),
            "nodes": nodes_of_pages(array),
            "file": name,
            "maps": mappings(name),
            "worker": os.getpid(),
        }
        Path(sys.argv[1]).write_text(json.dumps(found))
    coarse.barrier()
