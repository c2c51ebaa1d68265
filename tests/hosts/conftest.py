"""Jobs on kernels of their own: guests that QEMU emulates. `make test-hosts` runs them; nothing else does.

Each test is skipped by name where that is not asked for, or where Debian's packages are missing, with the line that
installs them.
"""

import os
from pathlib import Path

import pytest

from tests.hosts.images import folders_read_often, write_image
from tests.hosts.needs import install_line, missing_packages

HERE = Path(__file__).parent
ASKED_FOR = "COARSE_TEST_HOSTS"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]  # of a run that may have other tests too
    why = None if os.environ.get(ASKED_FOR) == "1" else "make test-hosts runs it: kernels in emulated machines"
    if why is None and (missing := missing_packages()):
        why = f"guests need more packages; as root: {install_line(missing)}"
    if why is not None:
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """Return, by each folder that guests read often, its image."""
    place = tmp_path_factory.mktemp("images")
    found = {folder: place / f"{number}.ext4" for number, folder in enumerate(folders_read_often())}
    for folder, image in found.items():
        write_image(folder, image)
    return found
