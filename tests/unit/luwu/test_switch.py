"""Which device is the switch, and what is refused."""

import pytest

from coarse.errors import ConfigError
from coarse.luwu.switch import Switch
from tests.unit.luwu.device.test_hosts import placed


def test_the_switch_is_apart_from_workers_where_a_device_is():
    assert Switch().tree(placed((0, 1), (0, 1, 2))).root == 2
    assert Switch().tree(placed((0, 0), (0, 0))).root == 0
    assert Switch(device=1).tree(placed((0, 1), (0, 1, 2))).root == 1


def test_switches_stand_below_the_one():
    tree = Switch(device=3, below={2: [0, 1]}).tree(placed((0, 1), (0, 1, 2, 3)))
    assert tree.parents == {0: 2, 1: 2, 2: 3}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sum": "int16"}, "sum must be one of"),
        ({"network": "tcp"}, "network must be one of"),
        ({"loss": 0.1}, "of network='udp'"),
        ({"device": 5}, "memory device 5; there are 2"),
        ({"device": -1}, "memory device -1; there are 2"),
        ({"below": {5: [0]}}, r"memory devices \[5\]"),
    ],
)
def test_what_cannot_be_is_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        Switch(**options).tree(placed((0, 1), (0, 1)))
