"""Every name is in one share, and no share is much larger than another."""

from hypothesis import given
from hypothesis import strategies as st

from coarse.snapshots.files.pieces import share_of

SIZES = st.dictionaries(st.text(max_size=3), st.integers(0, 1000), max_size=30)


@given(SIZES, st.integers(1, 6))
def test_shares_hold_each_name_once_and_differ_by_at_most_the_largest(nbytes_of, num_members):
    shares = [share_of(nbytes_of, member, num_members) for member in range(num_members)]
    assert sorted(name for share in shares for name in share) == sorted(nbytes_of)
    loads = [sum(nbytes_of[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= max(nbytes_of.values(), default=0)


@given(SIZES, st.integers(1, 6), st.data())
def test_what_is_the_first_members_is_in_its_share_and_counts_there(nbytes_of, num_members, data):
    of_first = data.draw(st.sets(st.sampled_from(sorted(nbytes_of)))) if nbytes_of else set()
    shares = [share_of(nbytes_of, member, num_members, of_first) for member in range(num_members)]
    assert of_first <= set(shares[0])
    assert sorted(name for share in shares for name in share) == sorted(nbytes_of)
    loads = [sum(nbytes_of[name] for name in share) for share in shares]
    most = max(nbytes_of.values(), default=0)
    assert max(loads) <= max(sum(nbytes_of[name] for name in of_first), min(loads) + most)


@given(SIZES, st.randoms())
def test_a_share_is_the_same_whatever_the_order(nbytes_of, random):
    names = list(nbytes_of)
    random.shuffle(names)
    shuffled = {name: nbytes_of[name] for name in names}
    assert share_of(shuffled, 1, 3) == share_of(nbytes_of, 1, 3)
