"""Parts of a training whose state is kept, in any framework.

A part's state is a tree of plain values, as JSON holds it, with tensors beside it, each under a name.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from coarse.errors import CheckpointError
from coarse.plain import ARRAYS, Plain, Tensors, blank, pack, unpack

VALUES = "coarse.values"
"""Name of the part that holds the script's own values."""
POSITION = "coarse.position"
"""Name of the part that has the script's position; it is put back behind those that a script has named."""
SETTINGS = "coarse.settings"
"""Name of the part that has the settings of an optimizer that commits its own steps."""
OWN = frozenset({VALUES, POSITION, SETTINGS})
"""Names of parts that no script has given."""


class Item(NamedTuple):
    """Tensor of a part."""

    name: str
    tensor: Any
    is_alike: bool = False
    """True if all workers have the same values after each step."""
    is_repeated: bool = True
    """True if a step that is made again must give the same bytes; the script's own values may be times."""


class Taken(NamedTuple):
    """State of a part."""

    tree: Plain
    """Values that JSON can hold; tensors stand in it by type and shape."""
    items: list[Item]


class Part(Protocol):
    """Object whose state is kept."""

    def take(self) -> Taken:
        """Return the state as it is now; tensors are the part's own."""
        ...

    def wanted(self, tree: Plain) -> list[Any]:
        """Return host tensors of the types and shapes that a kept tree has, in its order.

        Raises:
            CheckpointError: the tree is of another part.
        """
        ...

    def put(self, tree: Plain, tensors: list[Any]) -> None:
        """Restore the kept state; `tensors` are those of `wanted`, filled."""
        ...


class PlainPart:
    """Part whose state is one plain value, tensors among it."""

    def __init__(
        self,
        name: str,
        take: Callable[[], Plain],
        put: Callable[[Plain], object],
        tensors: Tensors = ARRAYS,
        *,
        is_repeated: bool = True,
    ) -> None:
        """Wrap `take`, which returns the value, and `put`, which is given it back; see Item for `is_repeated`."""
        self._name, self._take, self._put, self._tensors = name, take, put, tensors
        self._is_repeated = is_repeated

    def take(self) -> Taken:
        """Return the value.

        Raises:
            TypeError: something in it is neither plain value nor tensor; the error has its name.
        """
        tensors: list[Any] = []
        tree = pack(self._take(), tensors, self._name, self._tensors)
        items = [
            Item(f"{self._name}/{number}", each, is_repeated=self._is_repeated) for number, each in enumerate(tensors)
        ]
        return Taken(tree, items)

    def wanted(self, tree: Plain) -> list[Any]:
        """Return host tensors of the types and shapes of a kept tree."""
        return blank(tree, self._tensors)

    def put(self, tree: Plain, tensors: list[Any]) -> None:
        """Give the kept value back."""
        self._put(unpack(tree, iter(tensors), self._tensors))


def values_part(values: dict[str, Any], tensors: Tensors = ARRAYS) -> PlainPart:
    """Return the part of a script's plain values, a dict that it may change between steps."""

    def put(kept: dict[str, Any]) -> None:
        values.clear()
        values.update(kept)

    return PlainPart("values", lambda: values, put, tensors, is_repeated=False)


def items_of(taken: Mapping[str, Taken]) -> Iterator[Item]:
    """Yield all parts' tensors in their order."""
    for each in taken.values():
        yield from each.items


def require_same_tensors(own: list[tuple[str, list[Any]]], tree: Plain) -> None:
    """Return if the tensors of a part are those that were kept, by name, type and shape.

    Args:
        own: name and tensor kind of each of the part's tensors.
        tree: [name, type, shape] of each that was kept.

    Raises:
        CheckpointError: with the first that differs.
    """
    kept = [(name, [dtype, shape]) for name, dtype, shape in tree]
    for place, (name, kind) in enumerate(own):
        if place >= len(kept) or kept[place] != (name, kind):
            came = "nothing more" if place >= len(kept) else _described(*kept[place])
            raise another_model(_described(name, kind), came)
    if len(kept) > len(own):
        raise another_model("nothing more", _described(*kept[len(own)]))


def another_model(wanted: str, came: str) -> CheckpointError:
    """Return the error of states that are of another model."""
    return CheckpointError(
        f"the states that are kept are another model's: {wanted} was wanted, {came} came; go on with the script that "
        "committed them, or begin anew with other memory"
    )


def _described(name: str, kind: list[Any]) -> str:
    return f"{name} of {kind[0]}{kind[1]}"
