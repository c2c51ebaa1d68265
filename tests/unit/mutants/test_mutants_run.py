"""What `make test-mutants` decides without running a test: what became of a mutant, and whether tests have lost it."""

import sys
from collections import Counter

import pytest

from tests.mutants import run

MUTANT = {"file": "a.py", "line": 3, "function": "f", "change": "a < b -> (a <= b)"}
KILLED = {**MUTANT, "killed_by": "loopback", "test": "tests/unit/test_a.py::test_f"}
SURVIVOR = {**MUTANT, "survived": list(run.STAGES)}


def test_every_package_has_as_many_mutants_in_its_own_files():
    drawn = run.drawn()
    assert Counter(mutation.file.split("/")[1] for mutation in drawn) == dict.fromkeys(run.PACKAGES, run.PER_PACKAGE)
    assert len({mutation.key for mutation in drawn}) == len(drawn)


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        ("..F\nFAILED a.py::test_b[2:1, tiny shards] - assert 1 == 2\n1 failed", "a.py::test_b[2:1, tiny shards]"),
        ("ERROR tests/a.py\n1 error", "tests/a.py"),
        ("Segmentation fault", "pytest itself"),
    ],
)  # fmt: skip
def test_the_first_failure_is_named(output, wanted):
    assert run.first_failure(output) == wanted


def test_a_mutant_has_escaped_only_if_it_survives_the_stage_that_killed_it():
    assert run.escaped(KILLED, SURVIVOR)
    assert not run.escaped(KILLED, {**MUTANT, "survived": ["unit"]})
    assert not run.escaped(KILLED, {**KILLED, "killed_by": "ranks"})
    assert not run.escaped(SURVIVOR, SURVIVOR)
    assert not run.escaped(None, SURVIVOR)


def test_a_survivor_keeps_its_reason_and_the_stages_that_it_survived():
    known = {**MUTANT, "survived": ["ranks"], "reason": "Both are the same."}
    assert run.merged(known, {**MUTANT, "line": 4, "survived": ["unit"]}) == {
        **MUTANT, "line": 4, "survived": ["unit", "ranks"], "reason": "Both are the same.",
    }  # fmt: skip
    assert run.merged(known, KILLED) == KILLED
    assert run.merged(KILLED, {**MUTANT, "survived": ["unit"]}) == KILLED
    assert run.merged(KILLED, SURVIVOR) == SURVIVOR
    assert run.merged(None, SURVIVOR) == SURVIVOR


def test_the_summary_counts_by_stage_and_by_reason():
    rows = [KILLED, SURVIVOR, {**SURVIVOR, "reason": "Both are the same."}]
    assert run.summary(rows) == (
        "3 mutants: 1 killed (0 by unit, 1 by loopback, 0 by ranks), 2 survived, 1 of them with a reason"
    )


def test_a_copy_has_the_tracked_files_and_a_mutant_replaces_what_was_compiled(tmp_path):
    copy = run.Copy(tmp_path)
    name = "tests/mutants/run.py"
    assert (tmp_path / name).read_text() == (run.REPOSITORY / name).read_text()
    compiled = tmp_path / "tests/mutants/__pycache__" / f"run.{sys.implementation.cache_tag}.pyc"
    compiled.parent.mkdir()
    compiled.touch()
    copy.put(name, "x = 1\n")
    assert (tmp_path / name).read_text() == "x = 1\n"
    assert not compiled.exists()
