"""What the partition table's `memory` may say."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.protocol.place import (
    Anywhere,
    DaxDevice,
    ExistingFile,
    Folder,
    GpuMemory,
    NumaNode,
    in_range,
    memory_place,
    overlap,
)

PATHS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=30).map("/{}".format)


@given(
    st.one_of(
        st.builds(NumaNode, st.integers(0, 1023)),
        st.builds(GpuMemory, st.integers(0, 999)),
        *(st.builds(kind, PATHS) for kind in (DaxDevice, ExistingFile, Folder)),
    )
)
def test_a_place_is_read_back_from_what_it_is_shown_as(place):
    assert memory_place(str(place)) == place


@given(st.text(max_size=30))
def test_any_other_text_is_refused_by_the_key_with_what_is_known(text):
    assume(not text.startswith(("numa:", "dax:/", "file:/", "folder:/", "cuda:")))
    with pytest.raises(ConfigError) as refused:
        memory_place(text)
    assert refused.value.key == "memory"
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["", "numa", "numa:", "numa:-1", "numa:1,2", "numa: 1", "numa:٣", "numa:99999", "dax:",
                                  "dax:dax0.0", "folder:mnt", "file:tmp/x", "anywhere", "NUMA:0", "cuda", "cuda:",
                                  "cuda:-1", "cuda:0,1", "cuda: 0", "cuda:x", "cuda:1000", "gpu:0"])  # fmt: skip
def test_what_names_no_single_place_is_refused(text):
    with pytest.raises(ConfigError):
        memory_place(text)


RANGES = st.tuples(st.integers(0, 8), st.one_of(st.none(), st.integers(1, 8)))


@given(RANGES, RANGES)
def test_ranges_of_one_file_overlap_where_a_byte_is_in_both(one, other):
    def the_bytes(offset: int, nbytes: int | None) -> set[int]:
        return set(range(offset, 99 if nbytes is None else offset + nbytes))

    places = [in_range(ExistingFile("/pool"), *stated) for stated in (one, other)]
    assert overlap(*places) is bool(the_bytes(*one) & the_bytes(*other))


def test_other_files_and_places_without_bytes_of_their_own_do_not_overlap():
    assert not overlap(ExistingFile("/a"), ExistingFile("/b"))
    assert not overlap(NumaNode(0), NumaNode(0))
    assert not overlap(GpuMemory(0), GpuMemory(0))
    assert not overlap(Folder("/a"), Folder("/a"))
    assert not overlap(Anywhere(), Anywhere())


def test_a_range_is_shown_behind_the_path():
    assert str(in_range(DaxDevice("/dev/dax0.0"), 4096, None)) == "dax:/dev/dax0.0 from byte 4096"
    assert str(in_range(ExistingFile("/pool"), None, 8192)) == "file:/pool from byte 0, 8192 bytes long"


@pytest.mark.parametrize("place", [Anywhere(), NumaNode(1), Folder("/mnt/huge"), GpuMemory(0)])
def test_only_devices_and_files_have_ranges(place):
    assert in_range(place, None, None) == place
    with pytest.raises(ConfigError, match=r"memory_offset_bytes means nothing for memory '.*', only for dax:"):
        in_range(place, 0, None)
    with pytest.raises(ConfigError, match="memory_bytes means nothing"):
        in_range(place, None, 4096)


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, None), (None, 0), (None, -4096), (1 << 62, None)])
def test_a_range_that_no_file_has_is_refused(offset, nbytes):
    with pytest.raises(ConfigError, match=r"must lie in [01]\.\.\d+, got "):
        in_range(ExistingFile("/pool"), offset, nbytes)
