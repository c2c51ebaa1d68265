"""Starts the processes that ranks of tests are forked from (coarse/launch/warm), when a job first wants them; they end
with the one that tests."""

import atexit
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from coarse.launch import warm

_COARSE = (
    "numpy.random", "coarse", "coarse.client.profiler", "coarse.strategy.routing", "coarse.collectives.node_memory",
    "coarse.collectives.progress", "coarse.strategy.named", "coarse.protocol.partition_file",
    "coarse.proxy.service", "coarse.storage.device_file", "coarse.storage.machine_code", "coarse.pool.shared.memory",
    "coarse.pool.shared.coherence_checker", "coarse.storage.processor",
    "coarse.transport.device_transport", "coarse.pool.transport",
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

_WARM = Path(warm.__file__).parent
_ENTRY = "tests.support.bootstrap:run_forked"
_started: dict[str, tuple[str, ...]] = {}


def rank_command(library: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The command of a rank that is forked where this library is imported; its script and arguments follow.

    It is imported once, in this environment; a rank has its own.
    """
    if library not in _started:
        _started[library] = _start(library, environ)
    return (sys.executable, "-I", "-S", str(_WARM / "stand_in.py"), ",".join(_started[library]))


def _start(library: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Start a library's processes and wait until they listen; the paths of their sockets."""
    folder = tempfile.mkdtemp(prefix="coarse-ranks-")
    paths = tuple(f"{folder}/{seed}" for seed in HASH_SEEDS)
    servers = [
        subprocess.Popen(
            [sys.executable, str(_WARM / "server.py"), path, _ENTRY, "tests.support.bare_imports", *LIBRARIES[library]],
            env={**environ, **ENVIRON, "PYTHONHASHSEED": str(seed)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for path, seed in zip(paths, HASH_SEEDS, strict=True)
    ]  # fmt: skip

    def end() -> None:
        for server in servers:
            server.communicate()

    atexit.register(end)
    for server in servers:
        assert server.stdout is not None
        assert server.stdout.readline() == b"listens\n", f"what imports {library} for ranks has ended"
    return paths
