"""The table of claims is readable in a terminal of 80 columns."""

from io import StringIO

from rich.console import Console

from experiments.validation.claims import HEAD, Number, Unit, claim_row
from experiments.validation.script import claims_table


def test_all_columns_stand_in_80_characters():
    row = claim_row(
        "V100 bert-large, 2 and 4 workers, 1:1 and 2:1: COARSE over DENSE (policy auto, NVLink off)",
        "V-D, Fig. 16d", "10.8x to 13.8x", Number(10.8, 13.8, is_of_set=True), [7.1, 8.27], Unit.TIMES,
        inputs=(), why="w",
    )  # fmt: skip
    console = Console(width=80, file=StringIO())
    console.print(claims_table([row]))
    text = console.file.getvalue()
    assert all(word in text for word in (*HEAD, "missed"))
    assert "simulated" in text
    assert "-40%" in text
