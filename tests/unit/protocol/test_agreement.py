"""What ranks come to that have told one another what each found."""

import pytest

from coarse.errors import CapacityError, ConfigError
from coarse.protocol.agreement import first_lines_apart, settled


def come_to(checks, ranks):
    """What each member gets, or the error that it raises: all texts are there once all have told theirs."""
    texts: dict[int, str] = {}

    def tell(own, check):
        with pytest.raises(StopIteration):
            settled(check, lambda text: texts.__setitem__(own, text) or next(iter(())), ranks, own)

    for own, check in enumerate(checks):
        tell(own, check)
    found = []
    for own, check in enumerate(checks):
        try:
            found.append(settled(check, lambda _: [texts[member] for member in range(len(checks))], ranks, own))
        except Exception as error:  # what a member raises is what is asked
            found.append((type(error), str(error)))
    return found


def raising(error):
    def check():
        raise error

    return check


def test_without_an_error_each_has_its_own():
    assert come_to([lambda: 1, lambda: None, lambda: "c"], (0, 1, 2)) == [1, None, "c"]


def test_all_raise_what_the_first_has_found_and_that_one_its_own():
    checks = [lambda: 1, raising(CapacityError("it is full")), raising(ConfigError("never said"))]
    told = (CapacityError, "rank 5 reports: it is full")
    assert come_to(checks, (4, 5, 6)) == [told, (CapacityError, "it is full"), told]


def test_a_file_that_is_not_there_is_a_config_error_elsewhere():
    found = come_to([lambda: 1, raising(FileNotFoundError("no such file"))], (0, 1))
    assert found == [(ConfigError, "rank 1 reports: no such file"), (FileNotFoundError, "no such file")]


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (["a", "b"], ["a", "c"], ("b", "c")),
        (["a"], ["a", "b"], ("nothing more", "b")),
        (["a", "b"], [], ("a", "nothing more")),
    ],
)
def test_the_first_lines_that_differ_are_found(one, other, apart):
    assert first_lines_apart(one, other) == apart
