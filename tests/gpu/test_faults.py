"""A training on GPUs whose worker is killed goes on with the bits of one that nobody disturbed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.jobs import REPOSITORY

PROGRAM = REPOSITORY / "tests" / "mpi" / "faults" / "training.py"
MOST_S = 240


def run(folder: Path, mode: str, *words: str, options: tuple[str, ...] = ()) -> tuple[list[str], str]:
    """Digests of the workers, and what the job said."""
    folder.mkdir()
    command = [sys.executable, "-m", "coarse", "run", "--workers", "2", "--devices", "1", *options, str(PROGRAM)]
    environ = {
        **os.environ, "PYTHONPATH": str(REPOSITORY), "DEVICE": "cuda", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "COARSE_POLICY": "devices",
    }  # fmt: skip
    done = subprocess.run(
        [*command, mode, str(folder), *words], env=environ, capture_output=True, text=True, timeout=MOST_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return [path.read_text() for path in sorted(folder.iterdir())], done.stderr


@pytest.mark.parametrize("mode", ["coarse", "fsdp"])
def test_bits_of_a_training_on_a_gpu_are_the_same_after_kills(tmp_path, mode):
    quiet, _ = run(tmp_path / "quiet", mode)
    killed, said = run(tmp_path / "killed", mode, "worker:4", "device:9", options=("--restarts", "3"))
    assert killed == quiet
    assert said.count("the job starts again") == 2, said
    assert len(quiet) == 2
