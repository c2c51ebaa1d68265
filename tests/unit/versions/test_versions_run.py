"""What `make test-versions` decides without starting anything: which environments, what a report says, the table."""

import json
from pathlib import Path

import pytest

from tests.versions import run

PINS = [Path(f"tensorflow-{name}.txt") for name in ("2.20", "2.18", "2.18-keras-3.10", "2.9")]
JUNIT = """<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="2" tests="9">
  <testcase classname="unit.test_a" name="test_passes" />
  <testcase classname="unit.test_a" name="test_fails"><failure message="no">assert 1 == 2</failure></testcase>
  <testcase classname="" name="unit.test_b"><error message="collection failure">ImportError</error></testcase>
</testsuite></testsuites>"""


def row(tensorflow: str, **suites: dict[str, int]) -> dict[str, object]:
    """One environment whose tests all passed, but for what `suites` says."""
    passed = {"passed": 3, "failed": 0, "skipped": 0}
    versions = {"tensorflow": tensorflow, "keras": "3.15.1", "numpy": "2.0.2", "python": "3.11.7", "date": "2026-11-22"}
    return {**versions, "unit": passed, "mpi": passed, **suites}


def test_every_environment_is_chosen_by_an_empty_pattern():
    assert run.chosen(PINS, "") == sorted(PINS)


def test_only_those_with_the_pattern_in_their_name_are_chosen():
    assert set(run.chosen(PINS, "2.18")) == {PINS[1], PINS[2]}
    assert run.chosen(PINS, "keras") == [PINS[2]]


def test_a_pattern_that_no_environment_has_is_refused_with_their_names():
    with pytest.raises(ValueError, match=r"2\.18, .*got '2\.17'"):
        run.chosen(PINS, "2.17")


def test_pins_are_read_by_name():
    assert run.pinned("# a comment\nnumpy==2.0.2\ntensorflow-cpu==2.18.1\n") == {
        "numpy": "2.0.2",
        "tensorflow-cpu": "2.18.1",
    }


def test_errors_and_failures_both_count_as_failed():
    assert run.counts(JUNIT) == {"passed": 5, "failed": 2, "skipped": 2}


def test_tests_that_failed_are_named():
    assert run.failures(JUNIT) == ["unit.test_a.test_fails", "unit.test_b"]


def test_a_row_has_passed_only_where_each_suite_ran_and_none_failed():
    assert run.has_passed(row("2.18.1"))
    assert not run.has_passed(row("2.18.1", mpi={"passed": 3, "failed": 1, "skipped": 0}))
    assert not run.has_passed(row("2.18.1", unit={"passed": 0, "failed": 0, "skipped": 3}))


def test_a_suite_that_was_not_run_is_shown_as_such():
    partly = {name: value for name, value in row("2.18.1").items() if name != "mpi"}
    assert run.has_passed(partly)
    assert "| 3 passed | not run |" in run.table({"a": partly})


def test_the_table_is_in_order_of_versions_and_leaves_out_what_is_none():
    rows = {"b": row("2.18.1", mpi={"passed": 0, "failed": 2, "skipped": 0}), "a": row("2.9.0")}
    lines = run.table(rows).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| 2.9.0", "| 2.18.1"]
    assert lines[3] == "| 2.18.1 | 3.15.1 | 2.0.2 | 3.11.7 | 3 passed | 2 failed | 2026-11-22 |"


def test_a_table_goes_between_the_markers_and_leaves_the_rest():
    page = f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n"
    assert run.with_table(page, "new") == page.replace("old", "new")


def test_the_page_shows_the_results_that_are_kept():
    page = run.PAGE.read_text()
    assert run.with_table(page, run.table(run.kept(run.RESULTS))) == page
    assert page.count(run.BEGIN) == page.count(run.END) == 1


def test_results_are_kept_of_every_environment_in_the_versions_that_are_pinned_and_none_failed():
    results = run.kept(run.RESULTS)
    assert set(results) == {pins.stem for pins in run.PINS}
    for pins in run.PINS:
        packages, row = run.pinned(pins.read_text()), results[pins.stem]
        assert (row["tensorflow"], row["keras"]) == (packages["tensorflow-cpu"], packages["keras"])
        assert run.has_passed(row)


def test_results_of_other_environments_stay_until_their_pins_are_gone(tmp_path):
    results = tmp_path / "results.json"
    names = [pins.stem for pins in run.PINS]
    run.write(results, {names[0]: row("2.18.1"), "tensorflow-of-old": row("2.17.0")})
    run.write(results, {names[1]: row("2.19.1")})
    assert set(json.loads(results.read_text())["environments"]) == set(names[:2])
