"""Machine files: what is read is what was saved, and whatever is wrong is a ConfigError with a place and a remedy."""

import random
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.hardware.machine import Disks, Machine
from coarse.hardware.machine_file import load_machine, machine_from_toml, save_machine
from coarse.hardware.presets import load_preset, preset_names, preset_path
from coarse.protocol.toml import TomlFile

SMALL = """\
name = "small"
peer_to_peer = true

[accelerator]
name = "G"
memory_gib = 1
fp32_tflop_per_s = 1
fp16_tflop_per_s = 2
memory_bandwidth_gb_per_s = 100

[memory_device]
capacity_gib = 1
adder_gb_per_s = 10
optimizer_gb_per_s = 5

[[wire]]
name = "bus"
bandwidth_gbit_per_s = 80
latency_us = 2
table_bytes_us = [[1000, 5.0], [2000, 6]]

[[socket]]
name = "socket0"
wire = "bus"

[[switch]]
name = "switch0"
parent = "socket0"
wire = "bus"

[[gpu]]
name = "gpu0"
parent = "switch0"
wire = "bus"

[[gpu]]
name = "gpu1"
parent = "switch0"
wire = "bus"
"""


def load(tmp_path, text):
    path = tmp_path / "machine.toml"
    path.write_text(text, encoding="utf-8")
    return load_machine(path)


def test_units_of_the_keys_become_bytes_and_seconds(tmp_path):
    machine = load(tmp_path, SMALL)
    link = machine.links[machine.path("gpu0", "gpu1")[0]]
    assert (link.bytes_per_s, link.latency_s) == (pytest.approx(1e10), pytest.approx(2e-6))
    assert link.table == ((1000, pytest.approx(5e-6)), (2000, pytest.approx(6e-6)))
    assert machine.accelerator.memory_bytes == 2**30


def test_the_same_rate_may_be_stated_in_other_units(tmp_path):
    for key in ("bandwidth_gb_per_s = 10", "bandwidth_mb_per_s = 10_000", "bandwidth_bytes_per_s = 1e10"):
        machine = load(tmp_path, SMALL.replace("bandwidth_gbit_per_s = 80", key))
        assert machine.links[0].bytes_per_s == pytest.approx(1e10)


@pytest.mark.parametrize("name", preset_names())
def test_a_saved_machine_is_loaded_as_an_equal_one(name, tmp_path):
    machine = load_preset(name)
    save_machine(machine, tmp_path / "copy.toml")
    assert load_machine(tmp_path / "copy.toml") == machine


WRONG = [
    # (what to replace, by what, line of the error, words of the error)
    ("peer_to_peer = true", "peer_to_pear = true", 2, "peer_to_peer"),
    ("peer_to_peer = true\n", "", 1, "peer_to_peer must be true or false"),
    ("memory_gib = 1", "memory_gigs = 1", 6, "no known unit; write one of memory_gib"),
    ("latency_us = 2", "latency_fortnights = 2", 19, "no known unit; write one of latency_us"),
    ("latency_us = 2", "latency_us = -2", 19, "latency_us must be 0"),
    ("latency_us = 2", "latency_us = 2\nlatency_ns = 3", 20, "state the same; remove one"),
    ("bandwidth_gbit_per_s = 80", "bandwidth_gbit_per_s = 0", 18, "above 0"),
    ("bandwidth_gbit_per_s = 80", "bandwidth_gbit_per_s = nan", 18, "above 0"),
    ("bandwidth_gbit_per_s = 80", "bandwidth_gbit_per_s = -1.5", 18, "above 0"),
    ("bandwidth_gbit_per_s = 80", 'bandwidth_gbit_per_s = "80"', 18, "above 0"),
    ("bandwidth_gbit_per_s = 80\n", "", 16, "'bandwidth_gb_per_s' is missing"),
    ("[[1000, 5.0], [2000, 6]]", "[]", 20, "not empty"),
    ("[[1000, 5.0], [2000, 6]]", "[[2000, 5.0], [1000, 6]]", 20, "both grow"),
    ("[[1000, 5.0], [2000, 6]]", "[[1000, 5.0], [2000, 5.0]]", 20, "both grow"),
    ("[[1000, 5.0], [2000, 6]]", "[[1000, 5.0, 1]]", 20, "must hold [bytes, time]"),
    ('parent = "socket0"', 'parent = "switch0"', 28, "in a loop: switch0 -> switch0"),
    ('parent = "socket0"', 'parent = "gpu0"', 28, "parent of 'switch0' must be a socket or a switch"),
    ('parent = "socket0"', 'parent = "socket9"', 28, "there are: host, socket0"),
    ('name = "gpu1"', 'name = "gpu0"', 37, "stands twice"),
    ('name = "gpu1"', 'name = "gpu2"', 37, "gpus must be named gpu0, gpu1"),
    ('name = "socket0"\nwire = "bus"', 'name = "socket0"\nwire = "buss"', 24, "one of bus, got 'buss'"),
    ("[memory_device]", "[memory_devices]", 11, "did you mean memory_device"),
    ("peer_to_peer = true", 'peer_to_peer = true\nnetwork_wire = "nic"', 3, "must name a [[wire]]"),
    ("peer_to_peer = true", "peer_to_peer = true\nnum_nodes = 2", 3, "no network between them"),
    ("peer_to_peer = true", "peer_to_peer = true\nnum_nodes = 0", 3, "num_nodes must be a whole number in 1.."),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), WRONG, ids=[f"{new!r}" for _, new, _, _ in WRONG])
def test_what_is_wrong_is_named_with_file_line_and_remedy(old, new, line, words, tmp_path):
    assert SMALL.count(old) == 1
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, SMALL.replace(old, new))
    assert str(caught.value).startswith(f"{tmp_path / 'machine.toml'}:{line}: ")
    assert words in str(caught.value)


DISKS = """
[disks]
host_memory_gb = 2
worker_gb_per_s = 3
worker_capacity_gb = 4
optimizer_gb_per_s = 5
optimizer_capacity_gb = 6
num_optimizer_disks = 7
"""


def test_disks_are_read_in_bytes_and_saved(tmp_path):
    machine = load(tmp_path, SMALL + DISKS)
    assert machine.disks == Disks(
        host_memory_bytes=2 * 10**9, worker_bytes_per_s=3e9, worker_capacity_bytes=4 * 10**9, optimizer_bytes_per_s=5e9,
        optimizer_capacity_bytes=6 * 10**9, num_optimizer_disks=7,
    )  # fmt: skip
    save_machine(machine, tmp_path / "saved.toml")
    assert load_machine(tmp_path / "saved.toml") == machine
    assert load(tmp_path, SMALL).disks is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("num_optimizer_disks = 7\n", "", "'num_optimizer_disks' is missing"),
        ("num_optimizer_disks = 7", "num_optimizer_disks = 1.5", "num_optimizer_disks must be a whole number"),
        ("num_optimizer_disks = 7", "num_optimizer_disks = 0", "num_optimizer_disks must be"),
        ("host_memory_gb = 2", "host_memory_gb = -2", "host_memory"),
        ("worker_gb_per_s = 3\n", "", "worker"),
        ("worker_gb_per_s = 3", "worker_speed = 3", "worker_speed"),
    ],
)
def test_disks_that_make_no_sense_are_named(old, new, words, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(words)):
        load(tmp_path, SMALL + DISKS.replace(old, new))


def test_a_loop_of_several_switches_is_refused(tmp_path):
    text = SMALL.replace('parent = "socket0"', 'parent = "switch1"')
    text += '\n[[switch]]\nname = "switch1"\nparent = "switch0"\nwire = "bus"\n'
    with pytest.raises(ConfigError, match="switch0 -> switch1 -> switch0"):
        load(tmp_path, text)


def test_a_machine_without_gpus_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no rank has a device"):
        load(tmp_path, SMALL[: SMALL.index("[[gpu]]")])


def test_a_file_that_is_absent_or_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load_machine(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot be written"):
        save_machine(load_preset("aws-p3"), tmp_path / "no" / "folder.toml")


JUNK_TABLES = ("[]", "{}", "[[]]", "[1]", "[[1,2]]", "[[2,1],[1,2]]", "[[1,1],[1,1]]", '[[1,"a"]]', "{a=1}")
JUNK_NUMBERS = ("-1", "0", "3", "0.0", "-0.5", "nan", "inf", "-inf", "1e400", "1e-300", "1e300", "true", "1979-05-27")
JUNK_NAMES = ('""', '"host"', '"gpu0"', '"gpu1"', '"switch0"', '"socket0"', '"cci"', '"\\u0000"', '["gpu0","gpu0"]')
JUNK = st.one_of(
    st.sampled_from(JUNK_TABLES + JUNK_NUMBERS + JUNK_NAMES),
    st.integers().map(str),
    st.floats().map(repr),
    st.integers(10**30, 10**40).map(str),
)
KEYS = st.one_of(
    st.sampled_from(["name", "wire", "parent", "latency_us", "table_bytes_us", "turn_gb_per_s", "crossing", "nodes"]),
    st.text("abc_.-", min_size=1, max_size=4),
)


@st.composite
def damaged_texts(draw):
    """A preset's file with up to four lines dropped, repeated, moved, renamed or given another value."""
    lines = preset_path(draw(st.sampled_from(("coarse-fpga", "sdsc-p100", "fcdp-a40-rdma", "aws-p3")))).read_text()
    lines = [line for line in lines.splitlines() if line and not line.startswith("#")]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(("drop", "repeat", "move", "rename", "value", "value"))):
            case "drop":
                del lines[at]
            case "repeat":
                lines.insert(draw(st.integers(0, len(lines))), lines[at])
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
            case "rename":
                lines[at] = re.sub(r"[\w-]+", lambda _: key, lines[at], count=1) if (key := draw(KEYS)) else ""
            case "value":
                lines[at] = re.sub(r"= .*", lambda _: f"= {value}", lines[at]) if (value := draw(JUNK)) else ""
    return "\n".join(lines)


def is_machine_or_config_error(text, path):
    """Whether a file either gives a machine with links and paths, or is refused by ConfigError."""
    path.write_text(text, encoding="utf-8")
    try:
        machine = machine_from_toml(TomlFile.read(path))
        machine.path(machine.gpus[0], machine.gpus[-1])
    except ConfigError as error:
        return bool(str(error))
    return isinstance(machine, Machine) and len(machine.links) > 0


RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=200, **RELAXED)
@given(text=damaged_texts())
def test_a_damaged_file_gives_a_machine_or_a_config_error(text, tmp_path_factory):
    assert is_machine_or_config_error(text, tmp_path_factory.getbasetemp() / "damaged.toml")


def damaged_at_random(lines, number):
    """The lines of a file with one to four of them dropped, repeated, moved, renamed or given junk."""
    draw, lines = random.Random(number), list(lines)
    for _ in range(draw.randint(1, 4)):
        at, to = draw.randrange(len(lines)), draw.randrange(len(lines))
        match draw.choice(("drop", "repeat", "move", "rename", "value", "value")):
            case "drop":
                del lines[at]
            case "repeat":
                lines.insert(to, lines[at])
            case "move":
                lines.insert(to, lines.pop(at))
            case "rename":
                key = draw.choice(("name", "wire", "parent", "latency_us", "table_bytes_us", "_.-"))
                lines[at] = re.sub(r"[\w-]+", key, lines[at], count=1)
            case "value":
                value = draw.choice(JUNK_TABLES + JUNK_NUMBERS + JUNK_NAMES)
                lines[at] = re.sub(r"= .*", lambda _, value=value: f"= {value}", lines[at])
    return "\n".join(lines)


@pytest.mark.parametrize("num_files", [400, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.test_all])])
def test_files_damaged_at_random_give_a_machine_or_a_config_error(num_files, tmp_path):
    """Without hypothesis, which would need three times as long for so many."""
    texts = [preset_path(name).read_text() for name in ("coarse-fpga", "sdsc-p100", "fcdp-a40-rdma")]
    presets = [[line for line in text.splitlines() if line and not line.startswith("#")] for text in (*texts, SMALL)]
    for number in range(num_files):
        text = damaged_at_random(presets[number % len(presets)], number)
        assert is_machine_or_config_error(text, tmp_path / "damaged.toml"), text
