"""`make test` leaves out the tests marked `test_all` and most layouts; `make test-all` takes them by --test-all."""

import pytest

from tests.support import layouts


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
