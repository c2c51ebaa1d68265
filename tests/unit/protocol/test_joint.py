"""Joint calls as bytes."""

from hypothesis import given
from hypothesis import strategies as st

from coarse.protocol.joint import CollectiveKind, Joint, Meeting, pack_call, unpack_call

NBYTES = st.integers(0, 2**63)
JOINTS = st.builds(
    Joint,
    kind=st.sampled_from(CollectiveKind),
    nbytes=NBYTES,
    itemsize=st.integers(1, 16),
    root=st.integers(-1, 2**14),
    is_ring=st.booleans(),
    is_kept=st.booleans(),
    buffer=NBYTES,
    parts=st.lists(NBYTES, max_size=64).map(tuple),
)
MEETINGS = st.builds(
    Meeting, members=st.lists(st.integers(0, 2**16 - 1), max_size=64).map(tuple), number=st.integers(0, 2**62)
)


@given(MEETINGS, JOINTS)
def test_a_call_comes_back_as_it_was(meeting, joint):
    assert unpack_call(pack_call(meeting, joint)) == (meeting, joint)
