"""Jobs of several layouts that check the claims of some modules: one job for each layout."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tests.support.claims import read_reports, require_held
from tests.support.launch import mpirun


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Workers and devices of a job, the modules whose claims it checks, and how its ranks are configured."""

    modules: tuple[str, ...]
    partition: str = "2:2"
    settings: str = ""
    """Lines of the configuration beside the partition, in TOML."""
    argument: object = ""
    """What the program wants beside the folder and the modules."""

    @property
    def num_workers(self) -> int:
        """How many ranks check claims."""
        return int(self.partition.partition(":")[0])

    @property
    def num_ranks(self) -> int:
        """Workers and devices."""
        return sum(map(int, self.partition.split(":")))


def require_claims(
    layout: Layout, program: Path, names: Mapping[str, str], folder: Path, *, common: str, timeout_s: float
) -> None:
    """AssertionError unless `program FOLDER ARGUMENT MODULE...` finds that each claim of the modules holds everywhere.

    `names` says where a module is, by the name that the program takes; `common` are lines of every configuration.
    """
    (folder / "config.toml").write_text(f'partition = "{layout.partition}"\n{common}{layout.settings}')
    environ = {"COARSE_CONFIG": str(folder / "config.toml")}
    arguments = (folder, layout.argument, *layout.modules)
    completed = mpirun(layout.num_ranks, program, *arguments, env=environ, timeout_s=timeout_s)
    assert completed.returncode == 0, completed.stderr
    reports = read_reports(folder, layout.num_workers)
    for name in layout.modules:
        claims = [claim.__name__ for claim in import_module(names[name]).CLAIMS]
        assert claims, f"{names[name]} has no claims"
        require_held(reports, claims)
