"""Names of calls that are matched by their order."""

import pytest

from coarse.errors import InFlightError
from coarse.torch.names import OrderedNames


def test_a_name_is_in_use_until_its_call_was_waited_for() -> None:
    names = OrderedNames(3)
    number = names.begin("rows")
    names.begin("others")
    with pytest.raises(InFlightError, match=r"rank 3: 'rows' .* another name"):
        names.begin("rows")
    names.waited_for(number)
    names.begin("rows")
    with pytest.raises(InFlightError, match="others"):
        names.begin("others")


def test_a_later_call_that_was_waited_for_frees_the_names_of_all_before_it() -> None:
    names = OrderedNames(0)
    first = names.begin("dropped")
    names.waited_for(names.begin("later"))
    again = names.begin("dropped")
    names.waited_for(first)  # the handle of the first is waited for after all
    with pytest.raises(InFlightError):
        names.begin("dropped")
    names.waited_for(again)
    names.begin("dropped")
