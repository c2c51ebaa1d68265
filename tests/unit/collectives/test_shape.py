"""Which members stand on which node."""

import pytest

from coarse.collectives.shape import GroupShape
from coarse.errors import ConfigError


def test_a_rail_has_one_member_of_every_node_in_the_same_position():
    shape = GroupShape((7, 3, 7, 3, 3, 7))
    assert shape.members_by_node == ((0, 2, 5), (1, 3, 4))
    assert shape.rail(0) == shape.rail(1) == (0, 1)
    assert shape.rail(5) == (5, 4)
    assert shape.near(4) == (1, 3, 4)
    assert shape.place(4) == (1, 2)


@pytest.mark.parametrize(("nodes", "is_even"), [((0,), True), ((0, 1, 0, 1), True), ((0, 0, 1), False)])
def test_uneven_nodes_are_told_from_even_ones(nodes, is_even):
    assert GroupShape(nodes).is_even == is_even


def test_uneven_nodes_are_refused_with_their_numbers_of_members():
    with pytest.raises(ConfigError, match=r'"hierarchical" wants equally many .*got 2, 1 of 3; .*"ring"') as caught:
        GroupShape((0, 0, 1)).require_even()
    assert caught.value.key == "collective"
