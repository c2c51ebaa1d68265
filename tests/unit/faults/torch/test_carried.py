"""What an optimizer that commits its own steps carries of a script: all else, as it was at the script's commit."""

from types import SimpleNamespace

import pytest
import torch

from coarse.errors import CheckpointError, ConfigError
from coarse.faults.parts import VALUES, values_part
from coarse.faults.torch.carried import Carried, carrier_in, require_kept, without_carried
from coarse.faults.torch.parts import part_of
from coarse.torch.groups.objects import TENSORS, dumps, loads


class Network(torch.optim.SGD):
    """An optimizer that commits its own steps."""

    keeps_itself = True

    def __init__(self, model: torch.nn.Module, storage: object = ("folder",)) -> None:
        super().__init__(model.parameters(), lr=0.5)
        self.model = model
        self.remote = SimpleNamespace(declaration=SimpleNamespace(storage=storage))

    def carry(self, **what: object) -> None:
        """Nothing."""


@pytest.fixture
def script():
    model, ema = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer = Network(model)
    values = {"loss": 1.5}
    parts = {"ema": part_of("ema", ema, set(), set()), VALUES: values_part(values, TENSORS)}
    return SimpleNamespace(model=model, ema=ema, optimizer=optimizer, values=values, carried=Carried(parts, optimizer))


def test_the_optimizer_and_its_model_commit_themselves(script):
    wrapped = torch.nn.Sequential(script.model)
    parts = {"model": wrapped, "optimizer": script.optimizer, "ema": script.ema}
    carrier = carrier_in(parts)
    assert carrier == ("optimizer", script.optimizer)
    assert without_carried(parts, carrier) == {"ema": script.ema}
    assert carrier_in({"model": wrapped}) is None
    assert without_carried({"model": wrapped}, None) == {"model": wrapped}


def test_what_was_committed_comes_back_whatever_has_changed_since(script):
    script.carried.take(3)
    kept = script.ema.weight.detach().clone()
    with torch.no_grad():
        script.ema.weight.zero_()
    script.values["loss"] = 9.0
    script.optimizer.param_groups[0]["lr"] = 0.1  # a scheduler, at the epoch's end
    script.carried.load_state_dict(loads(dumps(script.carried.state_dict(), "state")))
    assert torch.equal(script.ema.weight, kept)
    assert script.values == {"loss": 1.5}
    assert script.optimizer.param_groups[0]["lr"] == 0.5
    assert script.carried.calls == 3


def test_before_the_first_commit_there_is_nothing(script):
    assert script.carried.state_dict() == {}
    script.carried.load_state_dict({})
    assert script.carried.calls == 0


def test_other_parts_are_refused(script):
    script.carried.take(1)
    other = Carried({VALUES: values_part({}, TENSORS)}, script.optimizer)
    with pytest.raises(CheckpointError, match=r"has the parts \['ema'\], and Resumable was given \[\]"):
        other.load_state_dict(script.carried.state_dict())


def test_what_cannot_be_carried_is_refused_by_name(script):
    with pytest.raises(ConfigError, match="'a' and 'b' both commit steps"):
        carrier_in({"a": script.optimizer, "b": Network(script.model)})
    in_memory = ("net", Network(script.model, storage=None))
    with pytest.raises(ConfigError, match=r"'net' has its states in the memory of devices \(storage=None\)"):
        require_kept(in_memory, {})
    require_kept(in_memory, {"COARSE_STATE_FILES": "@states"})
    require_kept(("net", script.optimizer), {})
