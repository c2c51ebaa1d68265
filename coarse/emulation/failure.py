"""Why a rank of an emulated run gave up: written by the rank, read by the launcher."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from coarse import errors
from coarse.errors import CoarseError, DeadRankError, FabricError


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error on its way from a rank to the launcher."""

    kind: str
    """The name of its class."""
    text: str
    fields: dict[str, object]
    """What the error says beside its text, where it is one of coarse's."""
    rank: int
    at_s: float
    """By the clock that all processes of this machine share."""

    @property
    def dead_rank(self) -> int | None:
        """The MPI rank whose end this is the word of, where it is no more than that."""
        rank = self.fields.get("rank")
        return rank if self.kind == DeadRankError.__name__ and isinstance(rank, int) else None

    def as_error(self, printed: str) -> CoarseError:
        """The error again; with what was printed where the text alone does not say why."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, CoarseError)):
            return CoarseError(f"rank {self.rank} raised {self.kind}: {self.text}{printed}")
        status = self.fields.get("status")
        is_clear = kind is not FabricError or not isinstance(status, int) or status < 0
        return kind(self.text if is_clear else self.text + printed, **self.fields)


def failure_of(error: BaseException, *, rank: int, at_s: float) -> Failure:
    """What a rank has to say about its error."""
    fields = vars(error) if isinstance(error, CoarseError) else {}
    return Failure(kind=type(error).__name__, text=str(error), fields=dict(fields), rank=rank, at_s=at_s)


def write_failure(failure: Failure, folder: Path) -> None:
    """Leave it where the launcher looks, whole or not at all."""
    unfinished = folder / f"failure-{failure.rank}.part"
    unfinished.write_text(json.dumps(asdict(failure)))
    unfinished.rename(unfinished.with_suffix(".json"))


def first_failure(folder: Path) -> Failure | None:
    """The first rank's that failed; word of another rank's death only where no rank says more."""
    found = [Failure(**json.loads(path.read_text())) for path in folder.glob("failure-*.json")]
    return min(found, key=lambda failure: (failure.dead_rank is not None, failure.at_s), default=None)
