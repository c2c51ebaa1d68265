"""Jobs of several layouts that check the same claims: which layouts `make test` takes, and a job for each."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

from tests.support.claims import claims_of, read_reports, require_held, takes_all
from tests.support.launch import REPOSITORY, mpirun

Choice = dict[str, Any]
"""By name of an axis, such as "workers", one of its values."""


def choices(axes: Mapping[str, Sequence[object]], is_allowed: Callable[..., bool]) -> list[Choice]:
    """The full product of the axes' values: every allowed choice, in the axes' order."""
    every = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
    return [choice for choice in every if is_allowed(**choice)]


def sets_of(choice: Choice, strength: int) -> set[tuple[tuple[str, Any], ...]]:
    """The values of each so many axes that a choice has together: with 2, its pairs."""
    return set(combinations(choice.items(), strength))


def covering(every: Sequence[Choice], strength: int = 2) -> list[int]:
    """Which of all choices to take so that few have every pair of values (with `strength` 2) that some choice has.

    Greedy: the choice with most pairs that none before it has, of several the last; then those that the others make
    superfluous are put back.
    """
    have = [sets_of(choice, strength) for choice in every]
    wanted = set().union(*have)
    taken: list[int] = []
    while missing := wanted - set().union(*(have[number] for number in taken)):
        taken.append(max(range(len(every)), key=lambda number: (len(have[number] & missing), number)))
    for number in list(taken):
        others = [other for other in taken if other != number]
        if wanted <= set().union(*(have[other] for other in others)):
            taken = others
    return sorted(taken)


def parameters(names: Iterable[object], in_make_test: Collection[object]) -> list[Any]:
    """Parameters of a test or fixture: all of them in `make test-all`, else those that are in `make test`."""
    return [name for name in names if takes_all() or name in in_make_test]


def partition_table(num_workers: int, num_devices: int, *, num_nodes: int = 1, is_both: bool = False) -> str:
    """The TOML of a table whose workers and devices are spread over nodes that are all on this host.

    With `is_both`, the first workers of each node are its memory devices too.
    """
    devices = [number * num_nodes // num_devices for number in range(num_devices)]
    ranks: list[tuple[str, str]] = []
    for node in range(num_nodes):
        near = sum(number * num_nodes // num_workers == node for number in range(num_workers))
        both = devices.count(node) if is_both else 0
        roles = ["both"] * both + ["worker"] * (near - both) + ["memory_device"] * (devices.count(node) - both)
        ranks += [(role, f"node{node}") for role in roles]
    return table_of(ranks)


def table_of(ranks: Iterable[tuple[str, str]]) -> str:
    """The TOML of a table whose ranks have these roles and nodes."""
    return "".join(
        f'[[rank]]\nrank = {rank}\nrole = "{role}"\nnode = "{node}"\n' for rank, (role, node) in enumerate(ranks)
    )


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
    layout: Layout, program: Path, names: Mapping[str, str], folder: Path, *, common: str, timeout_s: float,
    preloaded: str,
) -> None:
    """AssertionError unless `program FOLDER ARGUMENT MODULE...` finds that each claim of the modules holds everywhere.

    `names` says where a module is, by the name that the program takes; `common` are lines of every configuration, and
    `preloaded` goes to `mpirun`. The modules are read here and not imported, since they would bring torch or TensorFlow
    into the process of the tests.
    """
    (folder / "config.toml").write_text(f'partition = "{layout.partition}"\n{common}{layout.settings}')
    environ = {"COARSE_CONFIG": str(folder / "config.toml")}
    arguments = (folder, layout.argument, *layout.modules)
    completed = mpirun(layout.num_ranks, program, *arguments, env=environ, timeout_s=timeout_s, preloaded=preloaded)
    assert completed.returncode == 0, completed.stderr
    reports = read_reports(folder, layout.num_workers)
    for name in layout.modules:
        claims = claims_of(REPOSITORY / f"{names[name].replace('.', '/')}.py")
        assert claims, f"{names[name]} has no claims"
        assert reports.keys() >= set(claims)
    require_held(reports, reports)
