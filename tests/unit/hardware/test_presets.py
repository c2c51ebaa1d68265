"""The machines that come with the package."""

from pathlib import Path

import pytest

from coarse.errors import ConfigError
from coarse.hardware.presets import lines_without_source, load_preset, preset_names, preset_path
from coarse.protocol.toml import TomlFile

NAMES = {
    *("aws-g4dn", "aws-p3", "sdsc-p100", "coarse-fpga", "luwu", "cxl-type3-asic", "cxl-type3-fpga", "cxl-cz120"),
    *("cxl-cmm-b", "cxl-niagara2", "cxl-octopus", "cxl-titan2-6xcz120"),
    *("fcdp-a40-rdma", "fcdp-a40-ipoib", "fcdp-a40-10gbe", "fcdp-a40-1gbe"),
}


def test_every_machine_is_there():
    assert set(preset_names()) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_preset_loads_and_has_its_own_name(name):
    assert load_preset(name).name == name


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_number_of_a_preset_has_its_source_beside_or_above_it(name):
    assert not lines_without_source(TomlFile.read(preset_path(name)))


def test_numbers_without_a_source_are_found_by_their_lines():
    lines = ("", "a = 3", "# Measured.", "b = 4.5", "c = [1, 2]  # a table", '"x.y" = [0.1, 2]', "d = [", " 3,")
    assert lines_without_source(TomlFile(Path("m.toml"), "\n".join(lines), {})) == (2, 6, 7)


@pytest.mark.parametrize(("asked", "offered"), [("aws-p4", "aws-p3"), ("fcdp-a40", "fcdp-a40-rdma"), ("p100", "sdsc")])
def test_the_nearest_presets_are_offered_for_one_that_is_not_there(asked, offered):
    with pytest.raises(ConfigError, match=f"no preset '{asked}'.*{offered}"):
        load_preset(asked)


def test_all_presets_are_named_where_none_is_near():
    with pytest.raises(ConfigError, match=r"there are: aws-g4dn, .*sdsc-p100"):
        load_preset("?")


def test_the_networks_of_fcdp_order_as_its_table_three_does():
    rates = [load_preset(f"fcdp-a40-{name}").network.bytes_per_s for name in ("rdma", "ipoib", "10gbe", "1gbe")]
    assert rates == sorted(rates, reverse=True)
    assert [16e9 / 2 / rate for rate in rates] == pytest.approx([0.949, 3.963, 6.745, 67.66], rel=0.001)
