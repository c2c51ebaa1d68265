"""`coarse profile --costs`: the cost of a user's own model by the length of a sample."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from coarse.cli.named_function import function_named
from coarse.errors import ConfigError
from coarse.parallel.packing.measured_cost import ADDITIVE_WITHIN, MeasuredCost, Step, measure_cost, save_cost
from coarse.storage.processor import cpu_name


def profile_costs(text: str, lengths: str, repeats: int, save: Path | None, console: Console) -> None:
    """Measure, print and save costs; `text` is MODULE:FUNCTION, `lengths` a list with commas."""
    found = measure_cost(_step_of(text), _lengths_of(lengths), repeats)
    cost = found.cost
    console.print(_cost_table(text, found))
    console.print(
        f"a sample of s tokens: {cost.quadratic:.4g} (s/{cost.scale:g})^2 + {cost.linear:.4g} (s/{cost.scale:g}) "
        f"seconds, within {found.worst_share:.1%} of what was measured",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    if found.packed_share > ADDITIVE_WITHIN:
        Console(stderr=True).print(
            f"coarse: warning: samples of {_packed_text(found)} tokens took {found.packed_share:.0%} longer packed "
            "than apart; plans assume that they add up (let each attend to itself alone, without padding)",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    if save is not None:
        save_cost(found, save, f"{text} on {cpu_name()}")
        console.print(f"wrote {save}; read it by coarse.parallel.packing.measured_cost.load_cost",
                      highlight=False, markup=False, soft_wrap=True)  # fmt: skip


def _lengths_of(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--lengths must be whole numbers such as 64,256,1024, got {text!r}", key="lengths") from None


def _step_of(text: str) -> Step:
    """Return the step that MODULE:FUNCTION returns."""
    step = function_named(text, "costs")()
    if not callable(step):
        raise ConfigError(f"--costs {text}: it returned {step!r}; return a callable that takes lengths", key="costs")
    found: Step = step
    return found


def _packed_text(found: MeasuredCost) -> str:
    return ", ".join(map(str, found.packed))


def _cost_table(text: str, found: MeasuredCost) -> Table:
    table = Table(title=f"{text}, measured on {cpu_name()}", title_justify="left", min_width=60)
    for head in ("tokens", "ms, forward and backward", "by the fitted cost"):
        table.add_column(head)
    for length, seconds in found.seconds:
        fitted = found.cost.of(length)
        table.add_row(str(length), f"{1e3 * seconds:.2f}", f"{1e3 * fitted:.2f} ({fitted / seconds - 1:+.1%})")
    off = f"{found.packed_share:+.1%} of their sum"
    table.add_row(f"{_packed_text(found)} packed", f"{1e3 * found.packed_s:.2f}", off)
    return table
