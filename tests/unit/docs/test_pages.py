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


NOT_OF_THE_TABLES = {"1.7 %", "90.4 %"}
"""What is left of a loss of 98.3 %, and a count of FCDP's that has no row."""


def rounded_like(quoted: str, table: str) -> set[float]:
    """Return the numbers of a table with the unit of a quoted one, as precise as it is."""
    digits = len(re.sub(r"[^.\d]", "", quoted).partition(".")[2])
    return {round(float(number), digits) for number in re.findall(rf"(\d+(?:\.\d+)?) ?{quoted[-1]}", table)}


def test_the_evaluation_of_fcdp_quotes_ratios_and_shares_that_its_tables_have():
    page = (DOCS / "fcdp_evaluation.md").read_text()
    table = "".join((DOCS / name).read_text() for name in ("validation.md", "intervals.md"))
    quoted = set(re.findall(r"\d+\.\d+ ?[x%]", page))
    assert len(quoted) > 15
    found = {one for one in quoted if float(re.sub(r"[^.\d]", "", one)) in rounded_like(one, table)}
    assert quoted - found == NOT_OF_THE_TABLES


@pytest.mark.parametrize(("nodes", "row"), [(2, "ZeRO-3's iteration, ring"), (4, "the same, 4 nodes")])
def test_the_seconds_of_figure_2_in_the_evaluation_of_fcdp_follow_from_its_table(nodes, row):
    (line,) = re.findall(rf"^\| {row}.*$", (DOCS / "fcdp_evaluation.md").read_text(), re.MULTILINE)
    seconds = [float(one) for one in re.findall(r"[\d.]+", line.split("|")[4])]
    table = (DOCS / "validation.md").read_text()
    rates = re.findall(rf"batch 8, {nodes} nodes, \w+ \| [\d.]+ samples/s \| ([\d.]+) samples/s", table)
    assert seconds == pytest.approx([8 * 8 * nodes / float(rate) for rate in rates], rel=0.005)
