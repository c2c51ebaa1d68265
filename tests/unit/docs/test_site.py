"""The site of the documentation builds without a network and without a warning, and has a page for everything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import coarse
import coarse.strategy
import coarse.torch
from coarse.cli.app import HELP_LINES

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    # No proxy answers: a page that asked the network for something would not be made.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"} | dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    built = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_each_page_of_docs_is_a_page_of_the_site(site):
    pages = {path.stem for path in (REPOSITORY / "docs").glob("*.md")} - {"index_page"}  # the package index's own
    assert pages <= {path.stem for path in site.glob("*.html")}


def test_the_first_page_shows_the_picture_that_the_readme_shows(site):
    assert 'src="images/tiers.svg"' in (site / "index.html").read_text()
    assert (site / "images" / "tiers.svg").is_file()


@pytest.mark.parametrize("module", [coarse, coarse.torch, coarse.strategy], ids=lambda module: module.__name__)
def test_the_reference_describes_every_public_name(site, module):
    page = (site / "reference" / f"{module.__name__.replace('.', '_')}.html").read_text()
    described = set(re.findall(r'<h2 id="[\w.]*?(\w+)" class="doc doc-heading">', page))
    assert set(module.__all__) <= described


def test_the_reference_has_every_command_with_its_options(site):
    page = (site / "reference" / "commands.html").read_text()
    assert set(HELP_LINES) == set(re.findall(r'id="coarse-([a-z]+)"', page))
    assert "--machine" in page


def test_no_page_takes_a_font_a_script_or_a_picture_from_another_host(site):
    taken = r'<(?:script|img|link)[^>]*(?:src|href)="https?://(?!localhost)[^"]*"'
    assert {path.name: found for path in site.rglob("*.html") if (found := re.findall(taken, path.read_text()))} == {}


def test_the_workflow_of_a_fork_calls_targets_that_exist():
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "tests.yml").read_text())
    lines = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    called = {re.fullmatch(r"make ([a-z-]+)(?: PYTHON=python)?", line)[1] for line in lines}
    assert {"lint", "types", "test-unit-mpi", "docs"} <= called
    assert called <= set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
