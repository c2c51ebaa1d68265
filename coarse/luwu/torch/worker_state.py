"""State of a worker, committed with each step: generators, buffers, and the script's objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from coarse.errors import StorageError
from coarse.torch.groups.objects import dumps, loads
from coarse.torch.own_state import generators, is_scheduler, kept_buffers, set_generators


class Stateful(Protocol):
    """Object that can be carried: a scheduler, a sampler, a counter of the script's."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, tensors and arrays."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any:  # noqa: ANN401
        """Restore the state that `state_dict` returned."""
        ...


class WorkerState:
    """State of a worker at a step, which is taken, and put back in a resumed run.

    Objects that are stepped with the optimizer are right only after the step: schedulers, and the settings that they
    write into the optimizer's groups. So these are read when the next forward begins, and all else at the step itself.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._carried: dict[str, Stateful] = {}
        self._restored: dict[str, Any] = {}

    def carry(self, name: str, what: Stateful) -> None:
        """Carry an object; restore its state of the resumed step, if it was carried then."""
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(what, method, None)):
                raise TypeError(f"{name!r} has no {method}(); give what has both, such as a scheduler")
        self._carried[name] = what
        if name in self._restored.get("carried", {}):
            what.load_state_dict(self._restored["carried"][name])
            self.restore_generators()

    def take(self) -> dict[str, Any]:
        """Return all that is right at the step itself."""
        carried = {name: what.state_dict() for name, what in self._carried.items() if not _is_read_late(what)}
        buffers = {name: buffer.clone() for name, buffer in kept_buffers(self._model).items()}
        return {"generators": generators(), "carried": carried, "buffers": buffers}

    def sealed(self, taken: Mapping[str, Any], settings: list[dict[str, Any]]) -> bytes:
        """Return the bytes of a taken state, with the objects that are right only now."""
        late = {name: what.state_dict() for name, what in self._carried.items() if _is_read_late(what)}
        carried = {**taken["carried"], **late}
        return dumps({**taken, "carried": carried, "settings": settings}, "the state of this worker")

    def restore(self, raw: bytes) -> list[dict[str, Any]]:
        """Restore generators and buffers from some bytes; return the optimizer's settings.

        The rest is restored when it is carried.
        """
        self._restored = loads(raw)
        put_into_buffers(self._model, self._restored.get("buffers", {}), "the committed step")
        self.restore_generators()
        settings: list[dict[str, Any]] = self._restored["settings"]
        return settings

    def restore_generators(self) -> None:
        """Put the generators where they were."""
        if (found := self._restored.get("generators")) is None:
            return
        set_generators(found)

    @property
    def is_late(self) -> bool:
        """True if some object is right only when the next forward begins."""
        return any(_is_read_late(what) for what in self._carried.values())


def _is_read_late(what: object) -> bool:
    return is_scheduler(what) or getattr(what, "is_read_late", False)


def put_into_buffers(model: nn.Module, values: Mapping[str, torch.Tensor], source: str) -> None:
    """Copy values into a model's buffers.

    Raises:
        StorageError: they do not fit; it is raised before any is written.
    """
    buffers = kept_buffers(model)
    for name, value in values.items():
        if name not in buffers or buffers[name].shape != value.shape:
            has = f"one of shape {list(buffers[name].shape)}" if name in buffers else "none of that name"
            raise StorageError(
                f"{source} has a buffer {name!r} of shape {list(value.shape)}, and the model has {has}; go on with the "
                "model that it was written by"
            )
    with torch.no_grad():
        for name, value in values.items():
            buffers[name].copy_(value)
