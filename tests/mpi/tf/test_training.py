"""CoarseStrategy, live: training equals one process's on the global batch, and ranks stay equal to the bit."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.mpi.tf.training_claims import NAMES
from tests.support.launch import REPOSITORY
from tests.support.layouts import Layout, parameters, require_claims

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")

SENDING = REPOSITORY / "tests" / "support" / "sending_strategies.py"
COMMON = "stall_timeout_s = 60\nbucket_bytes = 100000\n"
LAYOUTS = {
    "auto": Layout(modules=("fit", "modes", "callbacks", "files", "logs"), argument=0),
    "devices, one thread": Layout(modules=("order", "loops", "draws"), settings='policy = "devices"\n', argument=1),
    "paper": Layout(modules=("dual", "layers", "equality"), settings='policy = "paper"\n', argument=0),
    "paper, the modes": Layout(modules=("modes",), settings='policy = "paper"\n', argument=0),
    "another device than the first": Layout(modules=("devices",), argument="0,CPU:1"),
    "another device, loops and layers": Layout(modules=("loops", "layers"), argument="0,CPU:1"),
    "dense, one device": Layout(modules=("modes",), partition="2:1", settings='mode = "dense"\n', argument=0),
    "all-reduce, two workers": Layout(
        modules=("modes",), partition="2:1", settings='mode = "allreduce"\n', argument=0
    ),
    "all-reduce, four workers": Layout(
        modules=("modes",), partition="4:2", settings='mode = "allreduce"\n', argument=0
    ),
    "all values by a wire": Layout(
        modules=("sent",), settings=f'mode = "{SENDING}:Sparse"\n[strategy]\nshare = 1.0\n', argument=0
    ),
    "few values by a wire": Layout(
        modules=("sent",), settings=f'mode = "{SENDING}:Sparse"\n[strategy]\nshare = 0.02\n', argument=0
    ),
    "a wire, and late sums": Layout(
        modules=("sent",), settings=f'mode = "{SENDING}:Sparse"\n[strategy]\nshare = 1.0\nbound = 2\n', argument=0
    ),
    "late sums that workers share": Layout(
        modules=("sent",), settings=f'mode = "{SENDING}:Shared"\n[strategy]\nbound = 1\n', argument=0
    ),
}
"""The argument is how many operations TensorFlow runs at once, 0 for as many as it likes, and the strategy's device."""


IN_MAKE_TEST = set(LAYOUTS) - {
    "all-reduce, four workers", "paper, the modes", "another device, loops and layers", "all values by a wire",
    "late sums that workers share", "few values by a wire", "dense, one device",
}  # fmt: skip


@pytest.mark.parametrize("name", parameters(LAYOUTS, IN_MAKE_TEST))
def test_every_claim_holds_on_every_rank(name, tmp_path):
    require_claims(
        LAYOUTS[name], HERE / "training_claims.py", NAMES, tmp_path, common=COMMON, timeout_s=600,
        preloaded="tensorflow",
    )  # fmt: skip
