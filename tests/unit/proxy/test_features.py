"""Features beside the kernel: attached by their first record, told what went before, named by text alone."""

from dataclasses import replace
from typing import NamedTuple, get_args, get_origin

import numpy as np
import pytest

from coarse.errors import CoarseError, ConfigError, UnsupportedError
from coarse.luwu.costs import COSTS as LUWU_COSTS
from coarse.luwu.steps import StoreWork
from coarse.luwu.store.instructions import Look, Place, ReadSum, WriteImage
from coarse.luwu.store.layout import PagedModel, PagedTensor, PagedUnit
from coarse.odc.records import ODC_BULK
from coarse.protocol import codec, features
from coarse.protocol.clock import VirtualClock
from coarse.protocol.codec import decode, encode, feature_of, register_records
from coarse.protocol.costs import Cost, Way, cost_of
from coarse.protocol.dtypes import DType
from coarse.protocol.features import FeatureSpec, costs_of, kind_of_message, part_of, spec_of, tag_of, use_features
from coarse.protocol.plan import Placement
from coarse.protocol.records import Died, KernelRecord, Leave, Push, Ready, Tag
from coarse.proxy.costs import INSTRUCTION_COSTS, RECORD_COSTS, Told
from coarse.proxy.executor import FeatureExecutor, ServiceKit
from coarse.proxy.feature import FeatureMachine
from coarse.proxy.instructions import Instruction, Reduce, Region, Send
from coarse.proxy.protocol import ProxyProtocol
from coarse.snapshots.costs import COSTS as SNAPSHOT_COSTS
from coarse.snapshots.records import HeldEntry
from coarse.snapshots.steps import CopyEntry, WritePart
from coarse.strategy.builtin import Coarse
from tests.support.tally import Count, Gone, Tally, Tell

TALLY = "tests.support.tally:SPEC"
PLACEMENT = Placement(
    client_nodes=(0, 0), device_nodes=(0, 0), local_proxies=(0, 1), ranks=(0, 1, 2, 3), planner=Coarse(),
    num_sync_groups=1,
)  # fmt: skip


KIT = ServiceKit(
    device=0, placement=PLACEMENT, clock=VirtualClock(), memories={0: None}, sleeper=None, wake=lambda: None,
    carry_out=lambda steps: None, can_send=False, give=lambda device, number, payload: None,
)  # fmt: skip


@pytest.fixture
def known(monkeypatch):
    """What is registered here is forgotten afterwards."""
    monkeypatch.setattr(features, "_specs", dict(features._specs))
    monkeypatch.setattr(codec, "_of_features", dict(codec._of_features))
    use_features((TALLY,))


@pytest.mark.parametrize("spec", use_features(()), ids=lambda spec: spec.name)
def test_every_part_that_a_feature_names_is_there(spec):
    assert all(hasattr(kind, "_fields") for kind in part_of(spec.records))
    machine = part_of(spec.machine)(ProxyProtocol(0, PLACEMENT, 1 << 20))
    assert isinstance(machine, FeatureMachine)
    assert not set(machine.handlers) - set(part_of(spec.records))
    assert callable(part_of(spec.executor))


EMULATED = ("odc",)
"""Features whose records have costs; others are refused by name where modelled time is kept."""


@pytest.mark.parametrize("spec", use_features(()), ids=lambda spec: spec.name)
def test_every_instruction_of_a_feature_has_a_cost(spec):
    costs = costs_of(spec.name)
    machine = part_of(spec.machine)(ProxyProtocol(0, PLACEMENT, 1 << 20))
    executor = part_of(spec.executor)(machine, KIT)
    assert set(executor.carriers) <= set(costs)
    sent = {*part_of(spec.records)} - {*ODC_BULK}
    assert (sent <= set(costs)) is (spec.name in EMULATED)
    assert sent <= set(costs) or not sent & set(costs)
    with pytest.raises(UnsupportedError, match="no cost is stated of Tell"):
        cost_of(costs, Tell(1), None)


def test_every_record_and_instruction_of_the_kernel_has_a_cost():
    assert set(RECORD_COSTS) == {*get_args(KernelRecord)}
    assert set(INSTRUCTION_COSTS) == {kind for kind in get_args(Instruction) if get_origin(kind) is None}


class Sizes:
    """Four bytes a shard, a worker's on the device of its number."""

    def nbytes(self, key, first, last):
        return 4 * (last - first)

    def device(self, key, client):
        return client


def test_the_kernels_costs_are_those_of_what_is_announced():
    told = Told(Sizes(), 1)
    assert cost_of(RECORD_COSTS, Push(1, 7, 0, 0, 2, 5, present=True), told) == Cost(Way.PUSHES, 12, 1)
    assert cost_of(RECORD_COSTS, Push(1, 7, 0, 0, 2, 5, present=False), told).way is Way.NOTHING
    assert cost_of(RECORD_COSTS, Ready(7, 2, 3, present=True), told) == Cost(Way.PULLS, 4, 1)
    reduce = Reduce(7, 0, 0, 1, int(DType.FLOAT32), 0, 1, 10, (Region(0, 0),) * 3, (), 0)
    assert cost_of(INSTRUCTION_COSTS, reduce, 0) == Cost(Way.ADDS, 120)


def test_costs_are_amounts_over_ways():
    entry = HeldEntry("w", int(DType.FLOAT32), (5, 2), 0, False)
    assert cost_of(SNAPSHOT_COSTS, WritePart(0, 0, "", (entry, entry)), None) == Cost(Way.WRITES, 80)
    assert cost_of(SNAPSHOT_COSTS, CopyEntry(0, 0, 0, 0, 40), None) == Cost(Way.COPIES, 40)
    model = PagedModel(units=(PagedUnit("u", (PagedTensor("w", (1000,)),)),), num_states=2)
    image = model.image(0, 0)
    assert cost_of(LUWU_COSTS, StoreWork(0, ReadSum(0, 0, 0)), model) == Cost(Way.READS, 4 * 1024)  # aligned
    assert cost_of(LUWU_COSTS, WriteImage(0, 0, 0, Place(0, None)), model) == Cost(Way.WRITES, image.nbytes)
    assert cost_of(LUWU_COSTS, Look(1, 0, 0, 0, None, (0,)), model).amount == 0


def test_a_feature_is_attached_by_its_first_record(known):
    protocol = ProxyProtocol(0, PLACEMENT, 1 << 20)
    attached = []
    protocol.on_attached = lambda name, machine: attached.append((name, type(machine)))
    assert protocol.on_record(Count(0, 5)) == [Send(0, Gone((), ())), Tell(5)]
    protocol.on_record(Count(0, 6))
    assert attached == [("tally", Tally)]


@pytest.mark.parametrize("is_attached", [False, True])
def test_leaves_and_deaths_before_it_are_told_to_it(known, is_attached):
    protocol = ProxyProtocol(0, PLACEMENT, 1 << 20)
    if is_attached:
        protocol.attach("tally")
    protocol.on_record(Leave(1))
    protocol.on_record(Died(3, "device 1 died"))
    assert Send(0, Gone((1,), (3,))) in protocol.on_record(Count(0, 5))


class Loud(FeatureMachine):
    """Answers a leave and a death."""

    def __init__(self, kit):
        self.handlers = {Count: lambda count: []}

    def on_leave(self, client):
        return [Tell(client)]

    def on_dead(self, rank, text):
        return [Tell(100 + rank)]


@pytest.mark.parametrize(
    ("before", "told"),
    [([Leave(1)], [1]), ([Died(1, "it died")], [101]), ([Leave(1), Died(3, "it died")], [103])],
    ids=["a leave", "a death", "who waits knows of the death"],
)
def test_what_follows_from_them_is_carried_out_before_the_first_record_is(known, monkeypatch, before, told):
    monkeypatch.setattr("tests.support.tally.Tally", Loud)
    protocol = ProxyProtocol(0, PLACEMENT, 1 << 20)
    for record in before:
        protocol.on_record(record)
    assert protocol.on_record(Count(0, 5)) == [Tell(number) for number in told]


def test_a_record_is_known_by_its_name_and_its_module_is_imported_for_it(known, monkeypatch):
    frame = encode(Count(3, 4))
    assert frame[:2] + frame[2:13] == bytes([5, 11]) + b"tally.Count"
    monkeypatch.setattr(codec, "_of_features", {})
    assert decode(frame) == Count(3, 4)
    assert feature_of(decode(frame)) == "tally"


@pytest.mark.parametrize(
    ("name", "said"),
    [("tally.Nothing", "'tally.Nothing' came, which is unknown here"), ("nobody.Count", "a feature 'nobody' was")],
)
def test_a_record_that_nobody_knows_is_named(known, name, said):
    with pytest.raises(CoarseError, match=said):
        decode(bytes([5, len(name)]) + name.encode() + b"[1,2]")


def test_a_record_of_no_feature_is_refused():
    with pytest.raises(CoarseError, match="no feature knows"):
        ProxyProtocol(0, PLACEMENT, 1 << 20).on_record(Tell(1))


def test_messages_of_features_have_tags_that_nothing_else_has(known):
    pairs = [(spec.name, number) for spec in use_features(()) for number in range(8)]
    tags = [tag_of(*pair) for pair in pairs]
    assert [kind_of_message(tag) for tag in tags] == pairs
    assert not {*tags} & {int(tag) for tag in Tag}
    assert len({*tags}) == len(pairs)
    with pytest.raises(ValueError, match="8 kinds"):
        tag_of("tally", 8)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("no.such.module:SPEC", "cannot be imported"),
        ("tests.support.tally:NOTHING", "cannot be imported"),
        ("tests.support.tally", "cannot be imported"),
        ("tests.support.tally:Tally", "should be a FeatureSpec, got type"),
        ("tests.unit.proxy.test_features:DOTTED", "is named 'a.b'; a name has small letters"),
        ("tests.unit.proxy.test_features:LACKING", "'tests.support.tally:NONE' of the feature 'lacking' cannot be"),
        ("tests.unit.proxy.test_features:OTHER", "is named 'luwu', as another one"),
    ],
)
def test_what_is_no_feature_is_refused_in_a_sentence(known, monkeypatch, reference, said):
    module = __import__("sys").modules
    monkeypatch.setitem(module, "tests.unit.proxy.test_features", __import__("types").SimpleNamespace(**OWN))
    with pytest.raises(ConfigError, match=said) as refused:
        use_features((reference,))
    assert refused.value.key == "features"


PARTS = {"records": "tests.support.tally:RECORDS", "machine": "tests.support.tally:Tally"}
OWN = {
    "OTHER": FeatureSpec(name="luwu", **PARTS),
    "DOTTED": FeatureSpec(name="a.b", **PARTS),
    "LACKING": FeatureSpec(name="lacking", **{**PARTS, "machine": "tests.support.tally:NONE"}),
}


def test_the_same_feature_may_be_named_again(known):
    use_features((TALLY, TALLY))
    assert spec_of("tally").machine == "tests.support.tally:Tally"


def test_an_executor_has_nothing_to_do_unless_it_says_so():
    executor = FeatureExecutor()
    assert not any((executor.poll(), executor.is_pending, executor.has_work, executor.has_urgent_work))
    assert executor.longest_sleep_s(0.3) == 0.3
    assert (executor.statistics(), executor.carried(0)) == ({}, (0, 0))
    with pytest.raises(NotImplementedError, match="FeatureExecutor was sent a message, and has no on_message"):
        executor.on_message(0, 0, np.zeros(1, np.uint8))


def test_records_are_registered_by_their_own_module_too():
    register_records("tally", (Count,))
    assert feature_of(Count(0, 0)) == "tally"


class Plain:
    """No record."""


class Unregistered(NamedTuple):
    """A record that nobody has registered."""

    number: int


@pytest.mark.parametrize("records", [(Plain,), Plain, (Count(0, 1),)], ids=["a class", "no tuple", "a record"])
def test_what_is_no_record_is_refused_where_it_is_registered(records):
    with pytest.raises(ConfigError, match="'mine' must be a NamedTuple class"):
        register_records("mine", records)


@pytest.mark.parametrize("value", [np.float32(1), np.zeros(2), b"bytes", {1, 2}], ids=str)
def test_what_no_record_can_hold_is_refused_by_the_records_name(value):
    with pytest.raises(CoarseError, match=r"tally\.Count: a record holds numbers, texts"):
        encode(Count(0, value))


def test_a_record_that_nobody_has_registered_is_refused_by_name():
    with pytest.raises(CoarseError, match=r"Unregistered is no record .* call register_records"):
        encode(Unregistered(1))


def raising(*_):
    raise ZeroDivisionError("oh")


class Faulty(FeatureMachine):
    """Does one thing wrong."""

    wrong = ""

    def __init__(self, kit):
        if self.wrong == "making":
            raising()
        answer = {"handling": raising, "nothing": lambda _: None}.get(self.wrong, lambda _: [])
        self.handlers = {} if self.wrong == "no handler" else {Leave if self.wrong == "taken" else Count: answer}
        if self.wrong == "no handlers":
            del self.handlers

    def on_leave(self, client):
        return raising() if self.wrong == "leaving" else []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("making", "the feature 'tally' on memory device 0 raised ZeroDivisionError"),
        ("handling", "the feature 'tally' on memory device 0 raised ZeroDivisionError"),
        ("leaving", "the feature 'tally' on memory device 0 raised ZeroDivisionError"),
        ("nothing", "'tally' on memory device 0 answered Count with None; return a list"),
        ("no handler", "the feature 'tally' has no handler of Count"),
        ("no handlers", "the feature 'tally' has no handler of Count"),
        ("taken", "the feature 'tally' handles .'Leave'., which others do"),
    ],
)
def test_a_machine_that_does_something_wrong_is_named(known, monkeypatch, wrong, said):
    monkeypatch.setattr("tests.support.tally.Tally", Faulty)
    monkeypatch.setattr(Faulty, "wrong", wrong)
    protocol = ProxyProtocol(0, PLACEMENT, 1 << 20)
    protocol.on_record(Leave(1))
    with pytest.raises(CoarseError, match=said):
        protocol.on_record(Count(0, 5))


def test_what_is_sent_is_copied_unless_it_is_given_up():
    given = []
    kit = replace(KIT, can_send=True, give=lambda device, number, payload: given.append(payload))
    payload = np.ones(3, np.uint8)
    kit.send(1, 0, payload)
    kit.give(1, 0, payload)
    payload[:] = 9
    assert [one.tolist() for one in given] == [[1, 1, 1], [9, 9, 9]]
