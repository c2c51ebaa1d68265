"""Members of a node that wait for each other by counts in memory that all have mapped."""

import numpy as np

from coarse.collectives.flag_barrier import FlagBarrier


def test_a_point_is_passed_by_all_once_the_last_has_come_and_the_others_are_named_until_then():
    rows = np.zeros((3, 8), np.int64)
    members = [FlagBarrier(rows, position, (4, 6, 9)) for position in range(3)]
    point = members[0].tick()
    passed = members[0].all_passed(point)
    assert passed.missing() == (6, 9)
    members[2].tick()
    members[2].tick()
    assert not passed.is_over()
    assert passed.missing() == (6,)
    members[1].tick()
    assert passed.is_over()
    assert not members[0].all_passed(point + 1).is_over()
