"""Which unit tests `make test-quick` runs for what has changed."""

from pathlib import Path

import pytest

from tests.quick import chosen_tests
from tests.support.sources import imported_names, module_of, parts_in

SOURCES = {
    Path("tests/unit/strategy/test_routing.py"): "from coarse.strategy.routing import derive_table\n",
    Path("tests/unit/odc/client/test_protocol.py"): "import coarse.odc.layout\n",
    Path("tests/unit/proxy/test_queues.py"): "def test_late():\n    from coarse.odc import layout\n",
    Path("tests/unit/test_session.py"): "from tests.support.claims import raises\n",
    Path("tests/unit/experiments/test_rows.py"): "from experiments.rows import Row\n",
}
FOLDERS = frozenset(parent for path in SOURCES for parent in path.parents)


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ([], []),
        (["coarse/strategy/routing.py"], ["tests/unit/strategy"]),
        (["coarse/odc/client/publish.py"], ["tests/unit/odc/client"]),
        (["coarse/odc/layout.py"], ["tests/unit/odc", "tests/unit/proxy/test_queues.py"]),
        (["coarse/session.py", "docs/design.md"], []),
        (["tests/support/claims.py"], ["tests/unit/test_session.py"]),
        (["tests/unit/proxy/test_queues.py"], ["tests/unit/proxy/test_queues.py"]),
        (["experiments/rows.py"], ["tests/unit/experiments"]),
    ],
)
def test_rooms_that_mirror_what_has_changed_and_tests_that_import_it_are_run(changed, wanted):
    found = chosen_tests([Path(name) for name in changed], SOURCES, FOLDERS)
    assert [str(path) for path in found] == wanted


def test_a_module_is_imported_by_its_name_or_by_what_stands_in_it():
    assert imported_names(parts_in("import a.b\nfrom c import d\n")) == {"a.b", "c", "c.d"}
    assert module_of(Path("coarse/client/__init__.py")) == "coarse.client"
