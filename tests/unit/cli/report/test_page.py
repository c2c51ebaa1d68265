"""A run's page: headings, captions, links that lead somewhere, colours by night; and its table on a console."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from coarse.cli.report.command import show
from coarse.cli.report.page import traces_in, write_page
from coarse.cli.report.run import Picture, Result, Run

MODES = ("dense", "coarse & more")
EMPTY = {"meta", "img"}


class Page(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, text):
        super().__init__()
        self.texts = {}
        """Tag -> the texts of its elements, in order."""
        self.links = []
        self.images = []
        self.inside = []
        self.feed(text)
        assert self.inside == []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag == "a":
            self.links.append(named["href"])
        if tag == "img":
            self.images.append(named)
        if tag not in EMPTY:
            self.inside.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.inside.pop() == tag

    def handle_data(self, data):
        for tag in self.inside:
            self.texts[tag][-1] += data


@pytest.fixture
def run():
    results = tuple(Result(name=name, policy="-", iteration_s=1, compute_s=1, exposed_s=0, idle_s=0) for name in MODES)
    return Run(
        kind="simulated", title="bert-large of <aws-p3>", inputs={"machine": "aws-p3"}, results=results, timelines=(),
        notes=("Memory of a GPU: 5.7 GiB.",),
    )  # fmt: skip


def page_of(run, folder, *, has_pictures=True):
    """The page as read, and its text."""
    picture = folder / "any.png"
    picture.write_bytes(b"\x89PNG")
    captions = {None: "Bars.", **{mode: f"Rows of {mode}." for mode in MODES}}
    pictures = [Picture(picture, mode, caption) for mode, caption in captions.items()] if has_pictures else []
    text = write_page(run, pictures, folder).read_text()
    return Page(text), text


def test_every_mode_has_a_heading_and_every_picture_a_caption_and_a_description(run, tmp_path):
    page, _ = page_of(run, tmp_path)
    assert page.texts["h1"] == ["bert-large of <aws-p3>"]
    assert page.texts["title"] == ["bert-large of <aws-p3> (simulated)"]
    modes = [f"Mode {mode}" for mode in MODES]
    assert page.texts["h2"] == ["Modes compared", *modes, "Notes", "What was asked", "Words"]
    assert page.texts["figcaption"] == ["Bars.", *(f"Rows of {mode}." for mode in MODES)]
    assert len({image["alt"] for image in page.images}) == len(page.images) == 1 + len(MODES)
    assert len(page.texts["caption"]) == len(page.texts["table"]) == 3


def test_links_lead_to_the_traces_that_are_there(run, tmp_path):
    for name in ("coarse & more.trace.json", "another.trace.json"):
        (tmp_path / name).write_text("{}")
    page, _ = page_of(run, tmp_path)
    assert page.links == ["coarse%20%26%20more.trace.json", "https://ui.perfetto.dev"]
    assert "coarse & more.trace.json" in page.texts["a"]


def test_the_demos_one_trace_is_linked_too(run, tmp_path):
    (tmp_path / "trace.json").write_text("{}")
    page, _ = page_of(run, tmp_path)
    assert page.links == ["trace.json", "https://ui.perfetto.dev"]
    assert traces_in(tmp_path) == (tmp_path / "trace.json",)


def test_a_page_without_traces_has_no_links(run, tmp_path):
    page, _ = page_of(run, tmp_path, has_pictures=False)
    assert page.links == []


def test_by_night_every_colour_is_another(run, tmp_path):
    _, text = page_of(run, tmp_path)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    by_day, night = style.split("@media (prefers-color-scheme:dark)")
    colours_by_day = dict(re.findall(r"(--[a-z]+):(#[0-9a-f]+)", by_day))
    colours_by_night = dict(re.findall(r"(--[a-z]+):(#[0-9a-f]+)", night))
    assert colours_by_day.keys() == colours_by_night.keys()
    assert all(colours_by_night[name] != colour for name, colour in colours_by_day.items())
    assert set(re.findall(r"var\((--[a-z]+)\)", style)) == set(colours_by_day)
    assert not re.findall(r"#[0-9a-f]{3,6}", re.sub(r"--[a-z]+:#[0-9a-f]+", "", style))  # none beside the variables
    assert "figure img{filter:invert" in night


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_console_that_is_too_narrow_cuts_no_column(run, columns, tmp_path):
    result = Result(
        name="allreduce", policy="auto 100%", iteration_s=12345e-9, compute_s=1e-6, exposed_s=1e-6, idle_s=1e-6,
        link_bytes=(("node0 socket0 duplex", 1e9),), samples_s=(1234e-9, 123456e-9),
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=columns)
    show(replace(run, results=(result, replace(result, name="zeropp"))), tmp_path, console)
    lines = console.file.getvalue().splitlines()
    assert sum(line.rstrip().endswith(" simulated") for line in lines) == 2
    assert sum("0.00123-0.123" in line for line in lines) == 2
