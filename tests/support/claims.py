"""Claims that one job checks one after another, so that mpirun starts once for many tests.

A program calls `report_claims` on every worker; the test that started it reads what all wrote.
"""

import ast
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import coarse
from coarse.session import current
from tests.support.sources import REPOSITORY

Claim = Callable[[], None]
_IN_TEST_ALL: set[Claim] = set()
TAKES_ALL = "TESTS_TAKE_ALL"
"""Set in the environment by --test-all."""
IN_TIME_S = 15.0
"""How soon an error must come: before any time limit could give it (20 s and more), on cores that others use too.

Where cores are free it comes within two seconds.
"""


def in_test_all(claim: Claim) -> Claim:
    """Mark, as a decorator, a claim that `make test-all` checks and `make test` does not."""
    _IN_TEST_ALL.add(claim)
    return claim


def takes_all() -> bool:
    """Return whether the tests that started this process take what `make test` leaves out (tests/conftest.py)."""
    return TAKES_ALL in os.environ


def report_claims(claims: Iterable[Claim], folder: str | Path) -> None:
    """Check each claim on this worker and write, by its name, how it failed (empty: it holds).

    With CLAIM_SECONDS=FILE in the environment, each adds a line to that file: its processor time and its time, in s.
    """
    reports: dict[str, str] = {}
    seconds = os.environ.get("CLAIM_SECONDS")
    for claim in claims:
        if claim in _IN_TEST_ALL and not takes_all():
            continue
        assert claim.__name__ not in reports, f"two claims are named {claim.__name__}"
        began_s, spent_s = time.perf_counter(), time.process_time()
        try:
            claim()
            reports[claim.__name__] = ""
        except Exception:
            reports[claim.__name__] = traceback.format_exc()
            print(f"worker {coarse.rank()}: {reports[claim.__name__]}", file=sys.stderr)  # the job may never end
        if seconds:
            with open(seconds, "a") as stream:
                took_s = (time.process_time() - spent_s, time.perf_counter() - began_s)
                stream.write(f"{took_s[0]:.2f}\t{took_s[1]:.2f}\t{claim.__module__}\t{claim.__name__}\n")
    (Path(folder) / f"worker{coarse.rank()}.json").write_text(json.dumps(reports))


def claims_of(module: Path) -> list[str]:
    """The names in a module's CLAIMS, but for what it unpacks there; read, since importing it may take long.

    Claims may be its own functions, or imported by name from other modules of claims.
    """
    body = ast.parse(module.read_text()).body
    left_out = set() if takes_all() else set().union(*(_left_out(one) for one in [body, *_imported(body)]))
    (claims,) = [
        node.value
        for node in body
        if (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CLAIMS")
        or (isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "CLAIMS")
    ]
    assert isinstance(claims, ast.Tuple | ast.List)
    named = [ast.unparse(claim) for claim in claims.elts if isinstance(claim, ast.Name)]
    return [name for name in named if name not in left_out]


def _imported(body: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """The statements of each module of claims that these import names from."""
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.endswith("_claims"):
            yield ast.parse((REPOSITORY / f"{node.module.replace('.', '/')}.py").read_text()).body


def _left_out(body: list[ast.stmt]) -> set[str]:
    """The names of a module's functions that are marked by `in_test_all`."""
    return {
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef) and in_test_all.__name__ in map(ast.unparse, node.decorator_list)
    }


def read_reports(folder: Path, num_workers: int) -> dict[str, list[str]]:
    """By name of the claim, what each worker wrote."""
    reports = [json.loads((folder / f"worker{rank}.json").read_text()) for rank in range(num_workers)]
    return {name: [report[name] for report in reports] for name in reports[0]}


def require_held(reports: dict[str, list[str]], names: Iterable[str]) -> None:
    """AssertionError, with how they failed, unless each of these claims holds on every worker."""
    failed = {name: reports[name] for name in names if any(reports[name])}
    assert not failed, "\n".join(text for failures in failed.values() for text in failures)


def report_error(folder: str | Path, rank: int, waited_s: float, error: Exception) -> None:
    """Write the error that an MPI rank got and how long it took, for `read_errors`."""
    found = {
        "waited_s": waited_s,
        "kind": type(error).__name__,
        "dead_rank": getattr(error, "rank", None),
        "text": str(error),
    }
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(found))


@contextmanager
def waiting_at_most(limit_s: float) -> Iterator[None]:
    """Within, this worker waits for others so long, not the job's `stall_timeout_s`, which starts of ranks need."""
    link = current().require_client().link
    patient_s, link.stall_timeout_s = link.stall_timeout_s, limit_s
    try:
        yield
    finally:
        link.stall_timeout_s = patient_s


@contextmanager
def raises(kind: type[Exception], *words: object) -> Iterator[list[Exception]]:
    """Like pytest.raises, which ranks do without: in time, and with all words in the message."""
    caught: list[Exception] = []
    began_s = time.perf_counter()
    try:
        yield caught
    except kind as error:
        caught.append(error)
    assert caught, f"no {kind.__name__} was raised"
    waited_s = time.perf_counter() - began_s
    assert waited_s < IN_TIME_S, f"{caught[0]} came after {waited_s} s"
    missing = [str(word) for word in words if str(word) not in str(caught[0])]
    assert not missing, f"{caught[0]} does not say {missing}"
