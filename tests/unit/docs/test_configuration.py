"""docs/configuration.md names every setting, with the default that the code has."""

import dataclasses
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

import coarse
from coarse.protocol.config import Config, FixedRouting, Launch, MeasuredRouting, PoolSettings
from coarse.protocol.partition_file import RANK_KEYS

PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def rows() -> dict[str, str]:
    """First cell -> second cell of every line of a table whose first cell is one `key`."""
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE, re.MULTILINE))


def value_of(cell: str) -> object:
    """The value that a default's cell stands for."""
    if cell == "none":
        return None
    if found := re.fullmatch(r"(\d+) (\w+)", cell):
        return int(found[1]) * UNITS[found[2]]
    names = {"MeasuredRouting": MeasuredRouting, "Launch": Launch, "false": False, "true": True}
    return eval(cell.strip("`"), names)


@pytest.mark.parametrize("section", [Config, MeasuredRouting, FixedRouting, Launch])
def test_every_setting_stands_in_the_page_with_its_default(section):
    for field in fields(section):
        cell = rows()[field.name]
        if field.default is MISSING and field.default_factory is MISSING:
            assert cell == "must be given"
        else:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            assert value_of(cell) == default, field.name


def test_the_page_names_no_setting_that_does_not_exist():
    known = {field.name for section in (Config, MeasuredRouting, FixedRouting, Launch) for field in fields(section)}
    assert {name for name in rows() if not name.isupper()} <= known | set(RANK_KEYS)


def test_every_key_of_a_partition_table_stands_in_the_page():
    assert set(RANK_KEYS) <= set(rows())


def test_the_file_in_the_page_states_the_defaults(tmp_path):
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "coarse.toml"
    path.write_text(toml)
    config = Config.from_toml(path)
    routing = dataclasses.replace(config.routing, profile_every_steps=None)
    assert config.launch == Launch(devices=2, hosts=("node1", "node2"))
    assert config.pool == PoolSettings(path="/dev/dax1.0")
    stated = dataclasses.replace(config, routing=routing, launch=Launch(), pool=None).to_mapping()
    assert set(re.findall(r"^(\w+) = ", toml, re.MULTILINE)) == {
        field.name
        for section in (Config, MeasuredRouting, Launch, PoolSettings)
        for field in fields(section)
        if field.name not in ("routing", "launch", "pool", "strategy")
    }
    defaults = Config().to_mapping()
    given = ("partition", "device_capacity_bytes", "decision")
    assert {**stated, **dict.fromkeys(given)} == {**defaults, **dict.fromkeys(given)}


def test_the_configuration_in_python_is_one():
    (program,) = re.findall(r"```python\n(.*?)coarse\.init", PAGE, re.DOTALL)
    names: dict[str, object] = {"coarse": coarse}
    exec(program, names)
    assert isinstance(names["config"], Config)


def test_every_environment_variable_of_the_code_stands_in_the_page():
    sources = Path(coarse.__file__).parent.rglob("*.py")
    read = {name for path in sources for name in re.findall(r"COARSE_[A-Z]+", path.read_text())}
    assert read
    assert all(f"`{name}`" in PAGE for name in read)
