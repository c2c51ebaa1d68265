"""docs/install.md has every extra of the package and mpirun's defaults; lines for several nodes place their ranks."""

import re
import shlex
import subprocess
from importlib.metadata import metadata
from pathlib import Path

import pytest

from coarse.launch.mpirun import missing_defaults
from coarse.protocol.distribution import NAME

REPOSITORY = Path(__file__).parents[3]
DOCS = REPOSITORY / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), REPOSITORY / "README.md"]
EXTRAS = metadata(NAME).get_all("Provides-Extra") or []


def rows(page: str) -> dict[str, str]:
    """Return the second cell of each line of a page's tables, by every name in its first cell."""
    lines = re.findall(r"^\| (`.+?`) \| (.+?) \|", (DOCS / page).read_text(), re.MULTILINE)
    return {name: cell for names, cell in lines for name in re.findall(r"`(\S+?)`", names)}


def packages(extra: str) -> set[str]:
    """Return the names of the packages that an extra brings."""
    required = metadata(NAME).get_all("Requires-Dist") or []
    return {re.split(r"[<>=;\s]", line)[0] for line in required if re.search(rf"extra == .{extra}\W", line)}


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_page_of_installs_has_every_extra_with_its_packages(extra):
    assert packages(extra)
    assert packages(extra) <= set(re.findall(r"[\w-]+", rows("install.md")[extra]))


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_page_of_the_index_has_every_extra(extra):
    assert extra in rows("index_page.md")


def test_every_page_that_names_an_extra_leads_to_the_page_of_installs():
    naming = [page for page in PAGES if re.search(r"(coarse-cxl|'\.)\[", page.read_text())]
    inside = [page for page in naming if page.name not in ("install.md", "index_page.md")]
    assert len(inside) > 4
    assert not [page.name for page in inside if "install.md" not in page.read_text()]


def test_the_files_of_the_page_are_what_a_plain_mpirun_lacks():
    page = (DOCS / "install.md").read_text()
    written = re.findall(r"printf '%s\\n' (.+?) > \S+/etc/(\S+\.conf)", page)
    texts = {file: "\n".join(shlex.split(values)) for values, file in written}
    assert missing_defaults({}, {})
    assert not missing_defaults(texts, {})
    assert {name.split("_MCA_")[1] for name in missing_defaults({}, {})} <= set(rows("install.md"))


def hostfile_commands(page: Path) -> list[str]:
    """Return the command lines of a page that name a hostfile, those that go on over several lines as one."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    return [line for line in text.splitlines() if re.match(r"\s+(\S*/)?mpirun .*--hostfile", line)]


def test_each_command_with_a_hostfile_places_ranks_by_node_and_names_the_environments_python():
    commands = [line for page in PAGES for line in hostfile_commands(page)]
    assert len(commands) >= 3
    assert not [line for line in commands if not re.search(r"--map-by ppr:\d+:node .*\.venv/bin/python ", line)]


def test_the_batch_file_of_the_cluster_page_is_one():
    (script,) = re.findall(r"```bash\n(#!.*?)```", (DOCS / "cluster.md").read_text(), re.DOTALL)
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", script, re.MULTILINE))
    assert f"--map-by ppr:{options['ntasks-per-node']}:node" in script
