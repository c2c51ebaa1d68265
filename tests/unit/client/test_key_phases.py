"""The table of a key's phases: what each event does in each of them, or which error it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.client.protocol import ClientKey, ClientProtocol, KeyPhase
from coarse.errors import InFlightError, MismatchError
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement
from coarse.protocol.records import Descriptor, Failed, Ready, Registered, Tables, key_of
from coarse.strategy.builtin import Coarse

PLACE = Placement(
    client_nodes=(0,), device_nodes=(0,), local_proxies=(0,), ranks=(0, 1), planner=Coarse(), num_sync_groups=1
)
W = Descriptor("w", int(DType.FLOAT32), int(Op.SUM), (4,), 0)
KEY = key_of("w")
DIGEST = b"digest of the values"


class Client:
    """A protocol with one key, and what may happen to it."""

    def __init__(self, *events: str) -> None:
        self.protocol = ClientProtocol(0, PLACE)
        self.protocol.on_record(Tables(1, ((0, 0, 0, 1 << 20),)))
        self.protocol.register(W)
        for event in events:
            self.do(event)

    @property
    def state(self) -> ClientKey:
        return self.protocol.named["w"]

    def do(self, event: str) -> object:
        """Let one thing happen."""
        protocol, flight = self.protocol, self.state.flight
        return {
            "registered": lambda: protocol.on_record(Registered(KEY, 1, 0, 64)),
            "begin": lambda: protocol.begin(KEY, is_claimed=True),
            "begin for nobody": lambda: protocol.begin(KEY),
            "ready": lambda: protocol.on_record(Ready(KEY, 0, 1, True)),
            "failed": lambda: protocol.on_record(Failed(KEY, 1, "MismatchError", "text")),
            "take": lambda: protocol.take(KEY),
            "ask": lambda: protocol.is_complete(KEY),
            "drop": lambda: protocol.abandon(KEY, flight),
            "drop an older": lambda: protocol.abandon(KEY, flight - 1),
            "stall": lambda: protocol.stall(KEY, flight, DIGEST),
            "resume": lambda: protocol.resume(KEY, DIGEST),
            "deregister": lambda: protocol.deregister("w"),
        }[event]()


WAYS = {
    "registering": (),
    "never pushed": ("registered",),
    "in flight": ("registered", "begin"),
    "in flight for nobody": ("registered", "begin", "drop"),
    "in flight, stalled": ("registered", "begin", "stall"),
    "landed": ("registered", "begin", "ready"),
    "landed for nobody": ("registered", "begin", "ready", "drop"),
    "landed, stalled": ("registered", "begin", "stall", "ready"),
    "landed, then failed": ("registered", "begin", "ready", "failed"),
    "taken": ("registered", "begin", "ready", "take"),
    "failed": ("registered", "begin", "failed"),
}
"""How a key comes to where it is."""
COLUMNS = ("begin", "ready", "failed", "take", "ask", "drop", "stall", "deregister")
N = InFlightError
TABLE = {
    "registering": (AssertionError, None, None, False, False, None, None, N),
    "never pushed": (None, None, None, False, False, None, None, []),
    "in flight": (N, None, None, False, False, None, None, N),
    "in flight for nobody": (N, None, None, False, False, None, None, N),
    "in flight, stalled": (N, None, None, False, False, None, None, N),
    "landed": (N, None, None, True, True, None, None, N),
    "landed for nobody": (None, None, None, True, True, None, None, []),
    "landed, stalled": (N, None, None, True, True, None, None, N),
    "landed, then failed": (MismatchError, None, None, True, True, None, None, []),
    "taken": (None, None, None, True, True, None, None, []),
    "failed": (MismatchError, None, None, MismatchError, True, None, None, []),
}
"""What an event gives: an error, an answer, records ([]), or nothing."""
I, G, F, D, X = KeyPhase.IDLE, KeyPhase.REGISTERING, KeyPhase.IN_FLIGHT, KeyPhase.LANDED, KeyPhase.FAILED  # noqa: E741
AFTER = {
    "registering": (G, G, X, G, G, G, G, G),
    "never pushed": (F, I, X, I, I, I, I, None),
    "in flight": (F, D, X, F, F, F, F, F),
    "in flight for nobody": (F, I, X, F, F, F, F, F),
    "in flight, stalled": (F, D, X, F, F, F, F, F),
    "landed": (D, D, D, I, D, D, D, D),
    "landed for nobody": (F, D, D, I, D, D, D, None),
    "landed, stalled": (D, D, D, I, D, D, D, D),
    "landed, then failed": (D, D, D, X, D, D, D, None),
    "taken": (F, I, X, I, I, I, I, None),
    "failed": (X, X, X, X, X, X, X, None),
}
"""The phase after it; None: the name is free."""


@pytest.mark.parametrize("event", COLUMNS)
@pytest.mark.parametrize("place", WAYS)
def test_what_an_event_does(place, event):
    client = Client(*WAYS[place])
    column = COLUMNS.index(event)
    wanted = TABLE[place][column]
    if isinstance(wanted, type):
        with pytest.raises(wanted):
            client.do(event)
    else:
        given_back = client.do(event)
        assert given_back is wanted or (wanted == [] and isinstance(given_back, list))
    after = AFTER[place][column]
    assert after is (client.state.phase if "w" in client.protocol.named else None)


def test_every_phase_is_in_the_table_with_every_event():
    assert {Client(*way).state.phase for way in WAYS.values()} == set(KeyPhase)
    assert set(TABLE) == set(AFTER) == set(WAYS)
    assert {len(row) for row in (*TABLE.values(), *AFTER.values())} == {len(COLUMNS)}


def test_a_handle_that_is_dropped_gives_up_its_own_push_alone():
    client = Client("registered", "begin", "ready", "take", "begin", "drop an older")
    assert client.state.is_claimed
    client.do("drop")
    assert not client.state.is_claimed


def test_what_a_call_that_stalled_pushed_stays_claimed_until_the_call_goes_on():
    client = Client("registered", "begin", "stall", "drop")
    assert client.state.is_claimed
    with pytest.raises(InFlightError, match=r"'w' raised StallError.*other values"):
        client.protocol.resume(KEY, b"digest of others")
    client.do("resume")
    client.do("drop")
    assert not client.state.is_claimed


def test_what_was_taken_cannot_be_resumed():
    assert not Client("registered", "begin", "stall", "ready", "take").state.stalled
    assert not Client("registered", "begin", "ready", "take", "stall").state.stalled


@given(st.lists(st.sampled_from(["begin", "begin for nobody", "ready", "take", "drop", "stall"]), max_size=40))
def test_in_every_story_results_are_as_many_as_pushes_less_the_one_under_way(events):
    client = Client("registered")
    pushes = 0
    for event in events:
        may_push = client.state.is_free
        if event.startswith("begin"):
            if not may_push:
                with pytest.raises(InFlightError):
                    client.do(event)
                continue
            pushes += 1
        client.do(event)
        state = client.state
        assert pushes - state.version == (state.phase is KeyPhase.IN_FLIGHT)
        assert (state.phase is KeyPhase.IN_FLIGHT) == bool(state.awaited) == (not client.protocol.is_quiet)
        assert client.protocol.untaken() == ([] if state.is_free else ["w"])
