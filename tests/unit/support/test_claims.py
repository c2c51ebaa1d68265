"""Claims that `make test` leaves out are neither checked nor expected there, and are both in `make test-all`."""

import json

import pytest

import coarse
from tests.support.claims import TAKES_ALL, claims_of, in_test_all, report_claims

MODULE = """
from tests.support.claims import in_test_all

def one(): ...

@in_test_all
def other(): ...

CLAIMS = (one, other)
"""


def one() -> None: ...


@in_test_all
def other() -> None:
    raise ArithmeticError("is checked")


@pytest.mark.parametrize("is_all", [False, True])
def test_a_marked_claim_is_left_out_unless_all_are_taken(is_all, monkeypatch, tmp_path):
    monkeypatch.delenv(TAKES_ALL, raising=False)
    if is_all:
        monkeypatch.setenv(TAKES_ALL, "1")
    monkeypatch.setattr(coarse, "rank", lambda: 0)
    (tmp_path / "module.py").write_text(MODULE)
    names = ["one", "other"] if is_all else ["one"]
    assert claims_of(tmp_path / "module.py") == names
    report_claims([one, other], tmp_path)
    reports = json.loads((tmp_path / "worker0.json").read_text())
    assert list(reports) == names
    assert ("is checked" in reports.get("other", "")) is is_all


def test_each_claim_adds_its_seconds_to_a_file_that_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(coarse, "rank", lambda: 0)
    monkeypatch.setenv("CLAIM_SECONDS", str(tmp_path / "seconds"))
    report_claims([one], tmp_path)
    spent_s, took_s, module, name = (tmp_path / "seconds").read_text().split()
    assert 0 <= float(spent_s) < 60
    assert 0 <= float(took_s) < 60
    assert (module, name) == (__name__, "one")
