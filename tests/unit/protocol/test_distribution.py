"""The name under which the package is installed, wherever a user is told to install it."""

import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import coarse
from coarse.protocol import toml
from coarse.protocol.distribution import NAME, VERSION, how_to_install

REPOSITORY = Path(__file__).parents[3]
TEXTS = [
    path
    for folder in ("coarse", "tf_strategy", "docs", "experiments", "benchmarks", ".")
    for path in (REPOSITORY / folder).glob("*" if folder == "." else "**/*")
    if path.suffix in (".py", ".md") and path.name != "CHANGES.md"
]


def test_the_package_has_one_name_and_one_version():
    found = metadata(NAME)
    assert (found["Name"], found["Version"], coarse.__version__) == (NAME, VERSION, VERSION)


def test_no_text_tells_a_user_to_install_the_package_of_another_project():
    assert len(TEXTS) > 500
    strangers = re.compile(r"pip install ['\"]?coarse(\[|['\"\s`])")
    assert not [path for path in TEXTS if strangers.search(path.read_text())]


def test_every_extra_that_a_text_names_exists():
    extras = set(metadata(NAME).get_all("Provides-Extra") or [])
    named = set()
    for path in TEXTS:
        text = path.read_text()
        named |= {extra for list_ in re.findall(r"coarse-cxl\[([\w,]+)\]", text) for extra in list_.split(",")}
        named |= set(re.findall(r"how_to_install\(['\"](\w+)['\"]\)", text))
    assert {"cuda", "report", "command", "snapshot", "mpi"} <= named <= extras
    assert how_to_install("mpi") == "pip install 'coarse-cxl[mpi]'"


def test_an_older_python_is_told_which_is_needed():
    program = f"import sys; sys.modules['tomllib'] = None; exec(open({toml.__file__!r}).read())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1].startswith("ImportError: coarse needs Python 3.11 or newer, and this is 3.")


def test_the_page_of_the_index_has_no_link_into_the_repository():
    page = (REPOSITORY / "docs" / "index_page.md").read_text()
    assert not re.findall(r"\]\((?!https?://)", page)
