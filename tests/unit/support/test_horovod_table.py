"""The table of what Horovod's tests claim names claims that there are, and its last result is committed."""

import json

from tests.conformance.horovod import RESULTS, TABLE, counts, known_claims


def test_every_claim_of_the_table_is_checked_somewhere():
    named = {claim for claims in TABLE.values() if isinstance(claims, tuple) for claim in claims}
    assert named <= known_claims()


def test_what_is_left_out_has_a_reason():
    reasons = [claims for claims in TABLE.values() if isinstance(claims, str)]
    assert all(reason.startswith(("does not apply: ", "differs: ")) for reason in reasons)


def test_the_last_result_is_of_this_table():
    result = json.loads(RESULTS.read_text())
    assert set(result["tests"]) == set(TABLE)
    assert result["counts"] == counts(result["tests"])
    assert not result["counts"]["failed"]
