"""What commands say of how far they are, where there is no terminal and where there is."""

import io

from rich.console import Console

from coarse.cli.progress import FIRST_S, LINE_S, shown_tasks
from coarse.protocol.clock import VirtualClock


def test_without_a_terminal_a_line_says_soon_and_then_now_and_again_how_far_it_is():
    written, clock = io.StringIO(), VirtualClock()
    with shown_tasks(Console(file=written, force_terminal=False), clock) as tasks:
        tell = tasks.begin("coarse: plan")
        for second in range(1, 36):
            clock.advance_to(float(second))
            tell(second / 40)
        tasks.begin_unmeasured("coarse: 4 ranks")()
    assert (FIRST_S, LINE_S) == (2.0, 10.0)
    assert written.getvalue().splitlines() == [
        "coarse: plan: 5%", "coarse: plan: 30%", "coarse: plan: 55%", "coarse: plan: 80%", "coarse: 4 ranks ...",
    ]  # fmt: skip


def test_on_a_terminal_there_are_bars_and_nothing_stays():
    written = io.StringIO()
    with shown_tasks(Console(file=written, force_terminal=True, width=100)) as tasks:
        tasks.begin("coarse: plan")(0.25)
        end = tasks.begin_unmeasured("coarse: 4 ranks")
        end()
    shown = written.getvalue()
    assert "coarse: plan" in shown
    assert " ..." not in shown
    assert shown.endswith("\x1b[2K")  # the last line is cleared
