"""docs/configuration.md names every setting, with the default that the code has."""

import dataclasses
import re
from dataclasses import fields
from pathlib import Path

import coarse
from coarse.protocol.config import Config, FaultSettings, Launch, MeasuredRouting, PoolSettings
from coarse.protocol.fields import options_of
from coarse.protocol.partition_file import RANK_KEYS
from tests.support import option_tables

PAGE = option_tables.PAGE.read_text()


def rows() -> dict[str, str]:
    """First cell -> second cell of every line of a table whose first cell is one `key`."""
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE, re.MULTILINE))


def test_the_tables_of_the_page_are_what_the_settings_say():
    assert option_tables.with_tables(PAGE) == PAGE, "run python -m tests.support.option_tables"
    assert all(option.says for section in option_tables.SECTIONS for option in options_of(section).values())


def test_the_page_names_no_setting_that_does_not_exist():
    known = {name for section in option_tables.SECTIONS for name in options_of(section)}
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
    assert config.faults == FaultSettings(memory="folder:/dev/shm/my-run", place="pool")
    tables = {"launch": Launch(), "pool": None, "faults": FaultSettings()}
    stated = dataclasses.replace(config, routing=routing, **tables).to_mapping()
    assert set(re.findall(r"^(\w+) = ", toml, re.MULTILINE)) == {
        field.name
        for section in (Config, MeasuredRouting, Launch, PoolSettings, FaultSettings)
        for field in fields(section)
        if field.name not in ("routing", "launch", "pool", "faults", "strategy", "emulate")
    }
    defaults = Config().to_mapping()
    given = ("partition", "sharding", "device_capacity_bytes", "decision")
    assert {**stated, **dict.fromkeys(given)} == {**defaults, **dict.fromkeys(given)}


def test_the_configuration_in_python_is_one():
    (program,) = re.findall(r"```python\n(.*?)coarse\.init", PAGE, re.DOTALL)
    names: dict[str, object] = {"coarse": coarse}
    exec(program, names)
    assert isinstance(names["config"], Config)


def test_every_environment_variable_of_the_code_stands_in_the_page():
    sources = Path(coarse.__file__).parent.rglob("*.py")
    read = {name for path in sources for name in re.findall(r"_?COARSE_[A-Z]+(?:_[A-Z]+)*", path.read_text())}
    assert read
    assert all(f"`{name}`" in PAGE for name in read)
