"""A client that gives a key up while others push it: records in, records out, by hand."""

import pytest

from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Deregister, Descriptor, Join, Register, key_of
from tests.unit.proxy.test_leaving import LATENCY_DEVICE, Device, failures, folder_of


@pytest.fixture
def name() -> str:
    return next(name for name in ("x", "y", "z") if folder_of(name) == LATENCY_DEVICE)


def deregistered(client: int, name: str) -> Deregister:
    return Deregister(client, key_of(name), -1, -1, 0)


def registered(name: str) -> Device:
    device = Device(0)
    device.register(0, name)
    device.register(1, name)
    return device


def reuse(device: Device, client: int, name: str) -> list:
    """The client uses the name for another shape: by its next key."""
    again = Descriptor(name, int(DType.FLOAT32), int(Op.SUM), (9,), 0)
    return device.tell(Register(client, key_of(name, 1), 1, again, -1, -1))


def require_told(steps: list) -> None:
    failed = failures(steps)[0]
    assert failed.error == "MismatchError"
    assert failed.rank == -1
    assert "rank 1 (MPI rank 1) uses" in failed.text


def test_who_pushes_what_another_has_replaced_is_told(name):
    device = registered(name)
    assert not failures(device.tell(deregistered(1, name)))
    assert not failures(reuse(device, 1, name))
    require_told(device.push(0, name))


def test_who_has_pushed_what_another_replaces_then_is_told(name):
    device = registered(name)
    assert not failures(device.push(0, name))
    assert not failures(device.tell(deregistered(1, name)))
    require_told(reuse(device, 1, name))


def test_who_gives_a_key_up_alone_may_still_join(name):
    device = registered(name)
    assert not failures(device.push(0, name))
    assert not failures(device.tell(deregistered(1, name)))
    assert not failures(device.tell(Join(1, 0, 0)))


def test_a_key_that_one_client_never_used_may_be_given_up_by_it(name):
    device = Device(0)
    assert not failures(device.tell(deregistered(1, name)))
    assert not failures(device.tell(deregistered(0, name)))
    assert not failures(device.register(0, name))


def test_nobody_is_told_where_all_give_a_key_up_and_use_its_name_anew(name):
    device = registered(name)
    for client in (0, 1):
        device.push(client, name)
    for client in (1, 0):
        assert not failures(device.tell(deregistered(client, name)))
    for client in (0, 1):
        assert not failures(device.register(client, name))
        assert not failures(device.push(client, name))


def test_who_has_joined_may_have_given_a_key_up(name):
    device = registered(name)
    device.tell(deregistered(1, name))
    device.tell(Join(1, 0, 0))
    assert not failures(device.push(0, name))


def test_another_key_is_not_concerned(name):
    device = registered(name)
    other = next(other for other in ("u", "v", "w", "a", "b") if folder_of(other) == LATENCY_DEVICE)
    device.register(0, other)
    device.register(1, other)
    device.tell(deregistered(1, name))
    assert not failures(device.push(0, other))
