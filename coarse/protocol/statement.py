"""Statement of one rank's configuration, and the configuration that all ranks' statements settle on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from coarse.errors import ConfigError
from coarse.protocol.config import Config

VARIABLES = {
    "mode": "COARSE_MODE", "policy": "COARSE_POLICY", "strategy": "COARSE_STRATEGY", "emulate": "COARSE_EMULATE",
}  # fmt: skip
"""Settings that an environment variable may state by itself."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Statement of one rank."""

    config: Mapping[str, Any]
    """Settings as this rank has them."""
    is_whole: bool
    """True if the rank was given a configuration; else it takes that of ranks that were."""
    variables: Mapping[str, Any]
    """Settings that its environment states, where it was given no configuration."""

    @classmethod
    def of(cls, config: Config, given: object, environ: Mapping[str, str]) -> "Statement":
        """Return the statement of a rank whose `init` was `given` a configuration, or None, and made `config`."""
        is_whole = given is not None or "COARSE_CONFIG" in environ
        stated = {key: getattr(config, key) for key, name in VARIABLES.items() if name in environ}
        return cls(config=config.to_mapping(), is_whole=is_whole, variables={} if is_whole else stated)

    def to_json(self) -> str:
        """Return the statement as JSON for the wire."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Statement":
        """Return the statement that `to_json` encoded."""
        return cls(**json.loads(text))


def settle(statements: Sequence[Statement], rank: int) -> Config:
    """Return the configuration of `rank`: that of the ranks that were given one, or else its own.

    Ranks that were given none take the others', but for their own place of a partition table.

    Raises:
        ConfigError: Settings differ between ranks, wherever they were stated.
    """
    whole = [number for number, statement in enumerate(statements) if statement.is_whole]
    _require_one(statements, whole)
    _require_variables_everywhere(statements, whole)
    own = Config.from_mapping(statements[rank].config)
    if not whole or rank in whole:
        return own
    agreed = Config.from_mapping(statements[whole[0]].config)
    return replace(agreed, partition=agreed.partition or own.partition)


def _require_one(statements: Sequence[Statement], whole: Sequence[int]) -> None:
    """Refuse settings that differ between the ranks that were given a configuration, and name them."""
    for rank in whole[1:]:
        first, mine = statements[whole[0]].config, statements[rank].config
        differing = [
            f"{key} is {value!r} on rank {rank} but {first[key]!r} on rank {whole[0]}"
            for key, value in mine.items()
            if value != first[key]
        ]
        if differing:
            raise ConfigError(
                f"{'; '.join(differing)}: give all ranks the same config, COARSE_CONFIG and COARSE_MODE"
            )


def _require_variables_everywhere(statements: Sequence[Statement], whole: Sequence[int]) -> None:
    """Refuse a variable that contradicts a configuration or differs between ranks that were given none."""
    for key, name in VARIABLES.items():
        by_value: dict[str, list[int]] = {}
        for rank, statement in enumerate(statements):
            if statement.is_whole:
                value = f"in the configuration {statement.config[key]!r}"
            elif key in statement.variables:
                value = repr(statement.variables[key])
            else:
                value = "not set"
            by_value.setdefault(value, []).append(rank)
        stated = {repr(statement.variables[key]) for statement in statements if key in statement.variables}
        wanted = {repr(statements[rank].config[key]) for rank in whole}
        if not stated or (wanted and stated == wanted) or len(by_value) == 1:
            continue
        said = " and ".join(f"{value} on ranks {ranks}" for value, ranks in by_value.items())
        raise ConfigError(
            f"{name} is {said}; set one value on all hosts (mpirun -x {name}), or {key} in the configuration alone",
            key=key,
        )
