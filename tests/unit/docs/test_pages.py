"""What the other pages state about files, modes and tables is so."""

import re
from pathlib import Path

import pytest

from coarse.protocol.config import MODES
from coarse.protocol.dtypes import DType
from coarse.protocol.partition_file import partition_from_toml

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md", "CHANGES.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_within_the_repository_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_the_page_on_modes_has_a_section_for_each_mode_that_exists():
    page = (DOCS / "modes.md").read_text()
    assert tuple(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == MODES


def test_the_tutorial_names_every_type_that_devices_add():
    (sentence,) = re.findall(r"Arrays may be of.*?bfloat16", (DOCS / "tutorial.md").read_text(), re.DOTALL)
    assert set(re.findall(r"\w+\d+", sentence)) == {dtype.label for dtype in DType}


def test_the_partition_table_of_the_cluster_page_is_as_it_says(tmp_path):
    (toml,) = re.findall(r"```toml\n(.*?)```", (DOCS / "cluster.md").read_text(), re.DOTALL)
    path = tmp_path / "partition.toml"
    path.write_text(toml)
    table = partition_from_toml(path, ["node1"] * 4 + ["node2"] * 4)
    assert table.workers == (0, 1, 4, 5)
    assert [table.devices[device] for device in table.local_proxies] == [2, 3, 6, 7]
