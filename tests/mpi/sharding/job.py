"""Jobs of four workers on two nodes, all on this machine, whose claims the tests on sharding read."""

from pathlib import Path

from tests.support.claims import read_reports
from tests.support.launch import mpirun

NUM_WORKERS = 4
_PARTITION = "".join(
    f'[[rank]]\nrank = {rank}\nrole = "both"\nnode = "node{rank // 2}"\n' for rank in range(NUM_WORKERS)
)


def reports_of(program: Path, folder: Path, *args: object, timeout_s: float = 400.0) -> dict[str, list[str]]:
    """By name of the claim, what each worker found."""
    (folder / "partition.toml").write_text(_PARTITION)
    (folder / "config.toml").write_text(f'stall_timeout_s = 20\npartition = "{folder / "partition.toml"}"\n')
    environ = {"COARSE_CONFIG": str(folder / "config.toml")}
    completed = mpirun(NUM_WORKERS, program, folder, *args, env=environ, timeout_s=timeout_s)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, NUM_WORKERS)
