"""Starts the processes that ranks are forked from, when a job first wants them; they end with the run of tests."""

import atexit
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

_COARSE = (
    "numpy.random", "coarse", "coarse.client.profiler", "coarse.client.routing", "coarse.collectives.node_memory",
    "coarse.collectives.progress", "coarse.protocol.composition", "coarse.protocol.partition_file",
    "coarse.proxy.service", "coarse.storage.device_file", "coarse.storage.machine_code", "coarse.storage.pool.memory",
    "coarse.storage.pool.shadow", "coarse.storage.processor", "coarse.transport.descriptors",
    "coarse.transport.device_transport", "coarse.transport.pool.transport",
)  # fmt: skip
"""Most of what a job's ranks import, without MPI, which each rank initialises by its import."""
LIBRARIES = {
    "coarse": _COARSE,
    "torch": (
        "pytest", "torch", "torch._dynamo", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp",
        "torch.utils.data", *_COARSE, "coarse.torch",
    ),
    "tensorflow": ("tensorflow", *_COARSE, "tf_strategy"),
}  # fmt: skip
"""What is imported before ranks are forked, by the name that tests give; torch._dynamo, since any optimizer does."""
ENVIRON = {"TF_CPP_MIN_LOG_LEVEL": "2"}
"""What libraries read when they are imported: of TensorFlow's logs its errors."""
HASH_SEEDS = (1, 2)
"""A process of each library for each, so that ranks go through a set of names in unlike orders, as they do else."""

FOLDER = "TESTS_RANKS_FOLDER"
"""In the environment, where all processes of a run of tests find those that ranks are forked from."""

_HERE = Path(__file__).parent
_ALIVE = "alive"
_found: dict[str, tuple[str, ...]] = {}


def rank_command(library: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The command of a rank that is forked where this library is imported; its script and arguments follow.

    It is imported once, in this environment; a rank has its own.
    """
    if library not in _found:
        if FOLDER not in os.environ:
            atexit.register(share())
        _found[library] = _find(library, Path(os.environ[FOLDER]), environ)
    return (sys.executable, "-I", "-S", str(_HERE / "rank.py"), ",".join(_found[library]))


def share() -> Callable[[], None]:
    """Have this process, and those that it starts, share the processes that ranks are forked from, until it calls what
    is returned or has ended: they see the end of a pipe that it holds open."""
    folder = Path(tempfile.mkdtemp(prefix="coarse-ranks-"))
    os.mkfifo(folder / _ALIVE)
    alive = os.open(folder / _ALIVE, os.O_RDWR | os.O_CLOEXEC)
    os.environ[FOLDER] = str(folder)

    def end() -> None:
        os.environ.pop(FOLDER, None)
        os.close(alive)
        shutil.rmtree(folder, ignore_errors=True)

    return end


def _find(library: str, folder: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The sockets of a library's processes, which whoever comes first has started."""
    with open(folder / f"{library}.txt", "a+") as found:
        fcntl.flock(found, fcntl.LOCK_EX)
        found.seek(0)
        if not (paths := found.read().split()):
            paths = _start(library, Path(tempfile.mkdtemp(prefix=f"{library}-", dir=folder)), environ)
            found.write("\n".join(paths))
    return tuple(paths)


def _start(library: str, folder: Path, environ: Mapping[str, str]) -> list[str]:
    """Start a library's processes, which nobody waits for, and return once they listen; the paths of their sockets."""
    paths = [f"{folder}/{seed}" for seed in HASH_SEEDS]
    with open(folder.parent / _ALIVE, "rb") as alive:
        said = [
            _spawn(
                [str(_HERE / "server.py"), path, *LIBRARIES[library]],
                {**environ, **ENVIRON, "PYTHONHASHSEED": str(seed)}, alive,
            )
            for path, seed in zip(paths, HASH_SEEDS, strict=True)
        ]  # fmt: skip
    for stream in said:
        with stream:
            assert stream.readline() == b"listens\n", f"what imports {library} for ranks has ended"
    return paths


def _spawn(arguments: list[str], environ: Mapping[str, str], stdin: BinaryIO) -> BinaryIO:
    """Start a Python program in a session of its own; the stream of what it prints."""
    reads, writes = os.pipe()
    files = [(os.POSIX_SPAWN_DUP2, stdin.fileno(), 0), (os.POSIX_SPAWN_DUP2, writes, 1)]
    try:
        command = [sys.executable, *arguments]
        os.posix_spawn(sys.executable, command, environ, file_actions=files, setsid=True)
    finally:
        os.close(writes)
    return os.fdopen(reads, "rb")
