"""Strategies by their names: coarse's own and a user's, their options, and what is wrong with them."""

import linecache
import sys
from dataclasses import replace

import pytest

from coarse.errors import ConfigError
from coarse.protocol.config import FixedRouting, load_config
from coarse.strategy.builtin import Allreduce, Auto, Coarse, Dense, Paper, name_of
from coarse.strategy.named import (
    digest_of,
    mode_name,
    module_named,
    options_from,
    require_no_script,
    strategy_named,
    strategy_text,
)

MINE = """
from dataclasses import dataclass
from coarse.strategy import Coarse, ConfigError, Strategy

@dataclass(frozen=True, kw_only=True)
class Mine(Coarse):
    every: int = 3
    share: float = 0.5
    label: str = "a"
    is_on: bool = False

    def __post_init__(self):
        if self.every < 1:
            raise ConfigError(f"every must be at least 1, got {self.every}")

@dataclass(frozen=True, kw_only=True)
class Needs(Strategy):
    rate: int

class Plain(Strategy):
    pass

number = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    path = tmp_path / "mine_of_a_test.py"
    path.write_text(MINE)
    monkeypatch.chdir(tmp_path)
    yield path
    sys.modules.pop("mine_of_a_test", None)


@pytest.mark.parametrize(
    ("mode", "policy", "kind"),
    [("dense", "auto", Dense), ("allreduce", "paper", Allreduce), ("coarse", "auto", Auto), ("coarse", "paper", Paper),
     ("coarse", "devices", Coarse)],
)  # fmt: skip
def test_coarses_own_are_known_by_mode_and_policy(mode, policy, kind):
    assert type(strategy_named(mode, policy=policy)) is kind
    assert digest_of(strategy_named(mode, policy=policy)) == ""


def test_a_class_is_found_by_file_and_by_module_once(mine):
    by_file, by_module = (strategy_named(f"{name}:Mine") for name in (str(mine), "mine_of_a_test"))
    assert type(by_file) is type(by_module)
    assert mode_name(f"{mine}:Mine") == name_of(by_file) == "Mine"


def test_settings_of_the_job_are_those_of_a_derived_class_unless_options_say_otherwise(mine):
    routing = FixedRouting(threshold_bytes=0, partition_bytes=64)
    found = strategy_named(f"{mine}:Mine", routing=routing, collective="ring", options={"every": 8})
    assert (found.routing, found.collective, found.every) == (routing, "ring", 8)
    stated = strategy_named(f"{mine}:Mine", collective="ring", options={"collective": "in_place"})
    assert stated.collective == "in_place"
    assert type(strategy_named(f"{mine}:Plain", collective="ring")).__name__ == "Plain"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ever": 3}, "has no option 'ever'; .*did you mean 'every'"),
        ({"every": "3"}, "every must be a whole number, got '3'"),
        ({"every": True}, "every must be a whole number, got True"),
        ({"share": "much"}, "share must be a number"),
        ({"label": 3}, "label must be text"),
        ({"is_on": 1}, "is_on must be true or false"),
        ({"every": 0}, "every must be at least 1, got 0"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(mine, options, said):
    with pytest.raises(ConfigError, match=said):
        strategy_named(f"{mine}:Mine", options=options)
    assert strategy_named(f"{mine}:Mine", options={"share": 1}).share == 1


def test_an_option_that_is_wanted_and_not_given_is_named(mine):
    with pytest.raises(ConfigError, match="wants its option 'rate'"):
        strategy_named(f"{mine}:Needs")
    with pytest.raises(ConfigError, match="has none"):
        strategy_named(f"{mine}:Plain", options={"rate": 3})
    with pytest.raises(ConfigError, match=r"mode 'coarse' has no options of a .strategy., got every"):
        strategy_named("coarse", options={"every": 3})


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("mine_of_a_test:Nothing", "has no attribute 'Nothing'"),
        ("mine_of_a_test:number", "number is 3; derive a class"),
        ("absent_module:Mine", "No module named 'absent_module'"),
        ("absent.py:Mine", r"absent.py cannot be read \(No such file"),
        ("corse", "did you mean 'coarse'"),
        ("mine.py", "MODULE:CLASS or FILE.py:CLASS"),
    ],
)
def test_a_class_that_cannot_be_found_is_refused_with_the_remedy(mine, mode, said):
    with pytest.raises(ConfigError, match=said):
        strategy_named(mode)


def test_a_module_that_brings_a_framework_into_devices_is_refused(mine, monkeypatch):
    mine.write_text("import sys; sys.modules['jax'] = sys\n" + MINE)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    try:
        with pytest.raises(ConfigError, match="imports jax, which memory devices do not load"):
            strategy_named(f"{mine}:Mine")
    finally:
        sys.modules.pop("jax", None)


def test_a_module_whose_import_fails_is_no_half_module_afterwards(mine):
    mine.write_text("number = 1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        module_named(str(mine))
    mine.write_text(MINE)
    assert strategy_named(f"{mine}:Mine").every == 3


def test_a_class_of_the_script_is_refused(mine):
    for mode in (f"{mine}:Mine", "mine_of_a_test:Mine"):
        with pytest.raises(ConfigError, match="cannot import a class from the script"):
            require_no_script(mode, str(mine))
    require_no_script("coarse", str(mine))
    require_no_script(f"{mine}:Mine", str(mine.parent / "train.py"))


def test_a_digest_tells_classes_options_and_files_apart(mine):
    first = strategy_named(f"{mine}:Mine")
    assert digest_of(first) == digest_of(strategy_named(f"{mine}:Mine"))
    before = digest_of(first)
    assert digest_of(strategy_named(f"{mine}:Plain")) == digest_of(strategy_named(f"{mine}:Plain"))
    assert before != digest_of(replace(first, every=4))
    mine.write_text(MINE + "\n# another version\n")
    sys.modules.pop("mine_of_a_test")
    linecache.clearcache()
    assert before != digest_of(strategy_named(f"{mine}:Mine"))


def test_options_are_stated_as_in_toml_for_all_classes_or_one():
    texts = ("every=8", "share=0.5", "Mine.label=x", "Other.every=9", "is_on=true")
    assert options_from(texts, "a.py:Mine") == {"every": 8, "share": 0.5, "label": "x", "is_on": True}
    assert options_from(texts, "a.py:Other")["every"] == 9
    for wrong in ("every", "=3", "a b=3"):
        with pytest.raises(ConfigError, match="--set must be NAME=VALUE"):
            options_from((wrong,), "a.py:Mine")


def test_options_travel_in_the_environment_over_those_of_the_file():
    text = strategy_text(["every=8", "label=x y"], "a.py:Mine")
    config = load_config({"mode": "a.py:Mine", "strategy": {"every": 3, "share": 0.1}}, {"COARSE_STRATEGY": text})
    assert config.strategy == {"every": 8, "label": "x y", "share": 0.1}
    assert strategy_text(None, "a.py:Mine") is None
    with pytest.raises(ConfigError, match="COARSE_STRATEGY must be options such as"):
        load_config(None, {"COARSE_STRATEGY": "every"})


def test_a_strategys_file_is_relative_to_the_configurations(tmp_path):
    path = tmp_path / "coarse.toml"
    path.write_text('mode = "mine.py:Mine"\n[strategy]\nevery = 4\n')
    config = load_config(path, {})
    assert (config.mode, config.strategy) == (f"{tmp_path / 'mine.py'}:Mine", {"every": 4})


def test_two_files_of_one_name_are_two_modules(tmp_path):
    found = []
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        path = tmp_path / str(number) / "twin_of_a_test.py"
        path.write_text(
            "from dataclasses import dataclass\nfrom coarse.strategy import Coarse\n\n"
            f"@dataclass(frozen=True, kw_only=True)\nclass Mine(Coarse):\n    number: int = {number}\n"
        )
        found.append(strategy_named(f"{path}:Mine"))
    assert [strategy.number for strategy in found] == [1, 2]
