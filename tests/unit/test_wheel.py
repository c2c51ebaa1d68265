"""The wheel holds all that the installed package needs: commands run from it alone, with every preset."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PRESETS = """
from coarse.hardware.presets import load_preset, preset_names
print(*[name for name in preset_names() if load_preset(name)])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what the wheel holds."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    source = folder / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "docs", "coarse", "tf_strategy"):
        (source / name).symlink_to(REPOSITORY / name)
    subprocess.run([*command, str(folder), str(source)], check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


def from_wheel(installed, *arguments):
    """What Python prints that finds the package in the wheel alone."""
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=installed.parent, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_the_packages_and_nothing_of_tests_or_experiments(installed):
    folders = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert folders == {"coarse", "tf_strategy"}
    assert {path.relative_to(REPOSITORY) for path in (REPOSITORY / "coarse").rglob("*.py")} == {
        path.relative_to(installed) for path in (installed / "coarse").rglob("*.py")
    }


def test_type_checkers_find_that_both_packages_are_annotated(installed):
    assert all((installed / package / "py.typed").is_file() for package in ("coarse", "tf_strategy"))


def test_help_predict_and_every_preset_run_from_it(installed):
    assert str(installed) in from_wheel(installed, "-c", "import coarse; print(coarse.__file__)")
    assert "predict" in from_wheel(installed, "-m", "coarse", "--help")
    found = from_wheel(installed, "-c", PRESETS).split()
    assert found == sorted(path.stem for path in (REPOSITORY / "coarse" / "hardware" / "presets").glob("*.toml"))
    assert "simulated" in from_wheel(installed, "-m", "coarse", "predict", "--modes", "allreduce", "--out", "predicted")
