"""Gradients that a switch adds: SwitchML's and SHARP's all-reduce, on several hosts."""

from pathlib import Path

import pytest

from tests.mpi.luwu.test_network import run
from tests.support.claims import claims_of, require_held

PROGRAM = Path(__file__).parent / "switch_claims.py"


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """By claim what each worker found."""
    return run(tmp_path_factory.mktemp("switch"), PROGRAM)


@pytest.mark.parametrize("name", claims_of(PROGRAM))
def test_claim(reports, name):
    require_held(reports, [name])
