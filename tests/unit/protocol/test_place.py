"""What the partition table's `memory` may say."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.protocol.place import DaxDevice, Folder, NumaNode, memory_place

PATHS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=30).map("/{}".format)


@given(st.one_of(st.builds(NumaNode, st.integers(0, 1023)), st.builds(DaxDevice, PATHS), st.builds(Folder, PATHS)))
def test_a_place_is_read_back_from_what_it_is_shown_as(place):
    assert memory_place(str(place)) == place


@given(st.text(max_size=30))
def test_any_other_text_is_refused_by_the_key_with_what_is_known(text):
    assume(not text.startswith(("numa:", "dax:/", "folder:/")))
    with pytest.raises(ConfigError) as refused:
        memory_place(text)
    assert refused.value.key == "memory"
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["", "numa", "numa:", "numa:-1", "numa:1,2", "numa: 1", "numa:٣", "numa:99999", "dax:",
                                  "dax:dax0.0", "folder:mnt", "file:/tmp/x", "anywhere", "NUMA:0"])  # fmt: skip
def test_what_names_no_single_place_is_refused(text):
    with pytest.raises(ConfigError):
        memory_place(text)
