"""`make test` leaves out the tests marked `test_all` and most layouts; `make test-all` takes them by --test-all.

Each run ends with the ten files that took longest, and their seconds: what a change adds is seen there.
"""

from collections import Counter

import pytest

from tests.support import layouts

NUM_SLOWEST = 10
FEW_S = 10.0
"""Runs whose tests take less in all name no files."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--test-all", action="store_true", help="run the tests marked test_all and every layout")


def pytest_configure(config: pytest.Config) -> None:
    layouts.takes_all = config.getoption("--test-all")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--test-all"):
        return
    left_out = [item for item in items if item.get_closest_marker("test_all")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("test_all")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds = seconds_by_file(terminalreporter.stats)
    if seconds.total() >= FEW_S:
        terminalreporter.section("slowest files")
        for file, spent_s in seconds.most_common(NUM_SLOWEST):
            terminalreporter.write_line(f"{spent_s:8.1f} s  {file}")


def seconds_by_file(stats: dict[str, list[object]]) -> Counter[str]:
    """Return the seconds of all phases of all tests, by their file."""
    seconds: Counter[str] = Counter()
    for reports in stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    return seconds
