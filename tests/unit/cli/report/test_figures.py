"""What the pictures of a run say: titles, legends, names of rows, panels and their order."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from coarse.cli.report.figures import COLOURS, comparison, links_figure, timeline_figure
from coarse.cli.report.run import Result, Run
from coarse.cli.report.timeline import Capacity, LinkUse, Row, Span, Timeline

TITLE = "bert-large, batch 2, 2 workers of aws-p3"


def link(name, kind, share, *others):
    """A link of 10 GB/s that uses a share of it for one second, evenly."""
    rate = share * 10e9
    return LinkUse(
        name=name, kind=kind, carries=("ring of workers",), capacity=(Capacity(0.0, 10e9),), nbytes=rate,
        bytes_per_s=(rate, rate), others=others,
    )  # fmt: skip


def row(name, *kinds):
    """Spans of these kinds, end to end."""
    return Row(name=name, spans=tuple(Span(kind, at / 10, (at + 1) / 10) for at, kind in enumerate(kinds)))


@pytest.fixture
def timeline():
    phases = ("forward", "backward", "idle", "exposed")
    rows = (
        row("worker 0", *phases),
        row("worker 0 push", "push"),
        row("worker 1", *phases),
        row("device 0 add", "add"),
    )
    return Timeline(
        title="coarse",
        duration_s=1.0,
        rows=rows,
        links=(
            link("gpu0 - gpu2 up", "NVLink up or down", 0.5, "gpu0 - gpu2 down"),
            link("switch0 down", "switch up or down", 0.01, *(f"switch{number} up" for number in range(1, 8))),
        ),
        places=(("worker 0", "gpu0"), ("worker 1", "gpu2"), ("device 0", "gpu1")),
    )


@pytest.fixture
def run(timeline):
    seconds = {"dense": (0.4, 0.1, 2.0), "coarse": (0.4, 0.1, 0.0)}
    results = tuple(
        Result(name=name, policy="-", iteration_s=sum(parts), compute_s=parts[0], idle_s=parts[1], exposed_s=parts[2])
        for name, parts in seconds.items()
    )
    return Run(kind="simulated", title=TITLE, inputs={}, results=results, timelines=(timeline,))


def legend_of(figure):
    """The entries of the figure's legend."""
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def drawn(figure):
    """The renderer that has laid the figure out."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def is_inside(box, around):
    return around.x0 <= box.x0 and box.x1 <= around.x1 and around.y0 <= box.y0 and box.y1 <= around.y1


def test_every_picture_names_model_machine_mode_and_kind(run, timeline):
    for figure in (comparison(run), timeline_figure(run, timeline), links_figure(run, timeline)):
        first, second = figure.get_suptitle().splitlines()
        assert first == TITLE
        assert second.endswith("(simulated)")
    assert "mode coarse, the last iteration" in timeline_figure(run, timeline).get_suptitle()
    measured = replace(run, kind="measured")
    assert comparison(measured).get_suptitle().endswith("(measured)")


def test_a_speed_up_says_over_what(run):
    texts = [text.get_text().strip() for text in comparison(run).axes[0].texts]
    assert texts == ["2500 ms", "500 ms, 5.00x the speed of dense"]


@pytest.mark.parametrize("slow", [0.001, 0.5, 2.0, 60.0])
def test_no_text_beside_a_bar_leaves_the_picture(run, slow):
    results = (
        *run.results,
        replace(run.results[0], name="a mode with a long name", exposed_s=slow, iteration_s=0.5 + slow),
    )
    figure = comparison(replace(run, results=results))
    renderer = drawn(figure)
    (axes,) = figure.axes
    for text in axes.texts:
        assert is_inside(text.get_window_extent(renderer), axes.get_window_extent(renderer))


def test_rows_name_the_gpus_that_play_workers_and_devices(run, timeline):
    figure = timeline_figure(run, timeline)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["worker 0 (gpu0)", "worker 0 (gpu0) push", "worker 1 (gpu2)", "device 0 (gpu1) add"]
    assert legend_of(figure) == [
        *("forward", "backward", "idle (slower workers)", "exposed communication", "push", "add (sync core)"),
    ]


def test_a_span_that_is_short_is_seen(run, timeline):
    spans = tuple(Span("add", at, at + 1e-7) for at in (0.1, 0.2003, 0.30007, 0.4111))
    figure = timeline_figure(run, replace(timeline, rows=(Row(name="device 0 add", spans=spans),)))
    renderer = drawn(figure)
    (axes,) = figure.axes
    pixels = np.asarray(renderer.buffer_rgba())
    box = axes.get_window_extent(renderer)
    middle = pixels[pixels.shape[0] - int((box.y0 + box.y1) / 2), int(box.x0) + 5 : int(box.x1) - 5, :3]
    is_dark = middle.max(axis=1) < 128
    assert np.count_nonzero(np.diff(is_dark.astype(int)) == 1) == len(spans)
    assert axes.get_xlabel() == "ms; what is shorter than 1/1000 of the time is drawn that long"
    assert timeline_figure(run, timeline).axes[0].get_xlabel() == "ms"


def test_a_timeline_of_some_workers_says_of_how_many(run, timeline):
    places = (*(("worker " + str(number), f"gpu{number}") for number in range(16)), ("device 0", "memory0"))
    figure = timeline_figure(run, replace(timeline, places=places))
    assert "2 of 16 workers" in figure.get_suptitle()
    assert "devices" not in figure.get_suptitle()


def test_live_timelines_name_no_places(run, timeline):
    figure = timeline_figure(run, replace(timeline, rows=(row("worker 0", "forward", "wait", "optimizer"),), places=()))
    assert figure.axes[0].get_yticklabels()[0].get_text() == "worker 0"
    assert legend_of(figure) == ["forward", "wait for the result", "optimizer"]


def test_each_panel_shows_its_capacity_and_the_legend_explains_the_dashes(run, timeline):
    figure = links_figure(run, timeline)
    assert len(figure.axes) == len(timeline.links)
    for axes in figure.axes:
        (line,) = axes.lines
        assert line.get_linestyle() == "--"
        assert set(line.get_ydata()) == {10.0}
        assert axes.get_ylim()[1] > 10.0
    assert "capacity of the link" in legend_of(figure)


def test_a_capacity_that_changes_is_drawn_as_it_changes(run, timeline):
    degraded = replace(timeline.links[0], capacity=(Capacity(0.0, 10e9), Capacity(0.25, 1e9)))
    (axes,) = links_figure(run, replace(timeline, links=(degraded,))).axes
    (line,) = axes.lines
    assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == [(0.0, 10.0), (250.0, 1.0), (1000.0, 1.0)]
    assert "10, then 1 GB/s" in axes.get_title(loc="left")


def test_panels_say_which_link_what_it_carries_and_who_sits_at_its_ends(run, timeline):
    first, second = (axes.get_title(loc="left").replace("\n", "; ") for axes in links_figure(run, timeline).axes)
    assert first == (
        "NVLink gpu0 (worker 0) - gpu2 (worker 1) up: ring of workers; 5 GB, 50% of what 10 GB/s would carry; "
        "also in use: gpu0 (worker 0) - gpu2 (worker 1) down"
    )
    assert second.endswith("1% of what 10 GB/s would carry; busiest of 8 of its kind (switch up or down)")


def test_a_gpu_is_not_taken_for_one_whose_name_begins_alike(run, timeline):
    links = (link("gpu11 up", "gpu up or down", 0.5), link("node1 gpu1 up", "gpu up or down", 0.4))
    places = (("worker 0", "gpu1"), ("device 0", "node1 gpu1"))
    figure = links_figure(run, replace(timeline, links=links, places=places))
    titles = [axes.get_title(loc="left").partition(":")[0] for axes in figure.axes]
    assert titles == ["gpu11 up", "node1 gpu1 (device 0) up"]


def test_titles_of_panels_stay_within_the_picture_and_apart(run, timeline):
    names = [f"node1 gpu{number} - gpu{number + 1} down" for number in range(3)]
    places = (*timeline.places, *((f"worker {number + 2}", f"gpu{number + 3}") for number in range(5)))
    longest = link(names[0], "NVLink up or down", 0.5, *names[1:])
    figure = links_figure(run, replace(timeline, links=(longest,) * 3, places=places))
    renderer = drawn(figure)
    titles = [axes._left_title.get_window_extent(renderer) for axes in figure.axes]
    panels = [axes.get_window_extent(renderer) for axes in figure.axes]
    assert all(is_inside(title, figure.bbox) for title in titles)
    assert not any(title.overlaps(panel) for title in titles for panel in panels)


DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
TRITANOPIA = ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900))
"""Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009."""


def lab(colour, vision):
    """CIE L*a*b* (D65) of a colour as somebody sees it; the matrix holds for linear red, green and blue."""
    encoded = np.array(to_rgb(colour))
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(vision) @ linear, 0.0, 1.0)
    to_xyz = np.array(((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)))
    x, y, z = (each ** (1 / 3) if each > 0.008856 else 7.787 * each + 16 / 116
               for each in to_xyz @ seen / np.array((0.9505, 1.0, 1.089)))  # fmt: skip
    return np.array((116 * y - 16, 500 * (x - y), 200 * (y - z)))


@pytest.mark.parametrize(
    "vision", [np.eye(3), DEUTERANOPIA, PROTANOPIA, TRITANOPIA], ids=("all", "deutan", "protan", "tritan")
)
def test_colours_that_meet_are_told_apart_by_any_eyes(vision):
    phases = [COLOURS[kind] for kind in ("forward", "backward", "idle", "exposed", "optimizer")]
    moves = [COLOURS[kind] for kind in ("push", "fetch", "ring", "pull", "add")]
    for colours in (phases, moves):
        for one, other in combinations(colours, 2):
            assert np.linalg.norm(lab(one, vision) - lab(other, vision)) > 16, (one, other)
