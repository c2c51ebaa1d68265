# Reads files. The module of a strategy that is not coarse's own.
"""Strategies by their names: coarse's own, and classes of a user's module, as MODULE:CLASS or FILE.py:CLASS.

A configuration names one, and a placement plans by it; the same on every rank.
"""

import hashlib
import inspect
import json
import sys
import tomllib
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, is_dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from coarse.errors import ConfigError
from coarse.protocol.config import MODES, Config, FixedRouting, MeasuredRouting, require_mode
from coarse.protocol.fields import plain_options_of
from coarse.protocol.partition import PartitionTable
from coarse.protocol.plan import Placement
from coarse.strategy.builtin import POLICY_STRATEGIES, Allreduce, Coarse, Dense
from coarse.strategy.strategy import Strategy

Rule = TypeVar("Rule")

DENSE, ALLREDUCE, COARSE = BUILT_IN = MODES
"""Modes that are coarse's own."""
HEAVY = ("torch", "tensorflow", "cupy", "jax")
"""Packages that memory devices do not load."""


def strategy_named(
    mode: str,
    *,
    policy: str = "auto",
    options: Mapping[str, object] | None = None,
    routing: MeasuredRouting | FixedRouting | None = None,
    collective: str | None = None,
    hold_back: bool | None = None,
) -> Strategy:
    """Return the strategy of a mode.

    Args:
        mode: "dense", "allreduce", "coarse", MODULE:CLASS or FILE.py:CLASS.
        policy: Of the mode coarse: "auto", "paper" or "devices".
        options: Fields of a user's class.
        routing: Of COARSE's strategies and classes derived from them, where `options` say nothing else. None leaves a
            class its own default.
        collective: As `routing`.
        hold_back: As `routing`.

    Raises:
        ConfigError: no such mode, module or class, or an option that the class does not take.
    """
    given = dict(options or {})
    if mode in BUILT_IN:
        if given:
            raise ConfigError(
                f"the mode {mode!r} has no options of a [strategy], got {', '.join(sorted(given))}; leave them out, or "
                "name a class as mode",
                key="strategy",
            )
        kind: type[Strategy] = {DENSE: Dense, ALLREDUCE: Allreduce}.get(mode) or POLICY_STRATEGIES[policy]
    else:
        require_mode(mode)
        kind = class_named(mode, Strategy)
    if issubclass(kind, Coarse):
        of_job = {"routing": routing, "collective": collective, "hold_back": hold_back}
        given = {**{name: value for name, value in of_job.items() if value is not None}, **given}
    return made(kind, given, mode)


def mode_name(mode: str) -> str:
    """Return a mode as tables and files have it: coarse's own name, or that of the class."""
    return mode.rpartition(":")[2]


def options_from(texts: Iterable[str], mode: str) -> dict[str, object]:
    """Return the options of a user's class that texts such as "every=8", or "Mine.every=8" for one class, state.

    Values are as in TOML; any other text is text.
    """
    found: dict[str, object] = {}
    for text in texts:
        name, is_given, value = text.partition("=")
        kind, _, option = name.strip().rpartition(".")
        if not is_given or not option.isidentifier():
            raise ConfigError(f"--set must be NAME=VALUE or CLASS.NAME=VALUE such as every=8, got {text!r}", key="set")
        if kind in ("", mode_name(mode)):
            found[option] = _value_of(value.strip())
    return found


def require_classes(texts: Iterable[str], modes: Iterable[str]) -> None:
    """Refuse an option of a class that none of the modes names."""
    known = {mode_name(mode) for mode in modes if ":" in mode}
    for text in texts:
        kind = text.partition("=")[0].strip().rpartition(".")[0]
        if kind and kind not in known:
            raise ConfigError(
                f"--set {text} is an option of {kind}, and modes name {', '.join(sorted(known)) or 'no class'}; "
                "correct it",
                key="set",
            )


def strategy_text(texts: Sequence[str] | None, mode: str | None, modes: Sequence[str] | None = None) -> str | None:
    """Return the statement of texts such as "every=8" in the form of COARSE_STRATEGY; None without texts.

    `modes` are all that they may be for.
    """
    if not texts:
        return None
    require_classes(texts, modes or [mode or ""])
    if modes is not None and len(modes) > 1 and (mode is None or mode in BUILT_IN):
        return None
    options = options_from(texts, mode or "")
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items())


def _value_of(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def class_named(mode: str, of: type[Rule]) -> type[Rule]:
    """Return the class derived from `of` that a mode names; its module is looked for in the working folder, too."""
    found = found_in_module(mode)
    if inspect.isclass(found) and issubclass(found, of):
        return found
    remedy = getattr(found, "named_in", f"derive a class from coarse.strategy.{of.__name__}")
    raise ConfigError(f"mode {mode}: {mode_name(mode)} is {found!r}; {remedy}", key="mode")


def place_of(error: BaseException) -> tuple[str, str]:
    """Return the function in which an error was raised, and its file and line for people."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return frame.name, f"{Path(frame.filename).name}, line {frame.lineno}"


def found_in_module(mode: str) -> object:
    """Return what a mode names; ConfigError for a module that is not found, or that memory devices cannot load."""
    module_name, _, name = mode.rpartition(":")
    require_no_script(mode, getattr(sys.modules.get("__main__"), "__file__", None))
    before = {heavy for heavy in HEAVY if heavy in sys.modules}
    try:
        found = getattr(module_named(module_name), name)
    except OSError as error:
        raise ConfigError(
            f"mode {mode}: {module_name} cannot be read ({error.strerror}); check the path, from this folder",
            key="mode",
        ) from error
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"mode {mode}: {error}; name a class in a module that is found from this folder, and not in the script",
            key="mode",
        ) from error  # fmt: skip
    except Exception as error:
        _, line = place_of(error)
        said = f"its module cannot be loaded: {type(error).__name__}: {error} ({line}); correct it"
        raise ConfigError(f"mode {mode}: {said}", key="mode") from error
    if brought := [heavy for heavy in HEAVY if heavy in sys.modules and heavy not in before]:
        raise ConfigError(
            f"mode {mode}: its module imports {', '.join(brought)}, which memory devices do not load; import the "
            "standard library, numpy and coarse.strategy alone",
            key="mode",
        )
    return found


def require_no_script(mode: str, script: str | None) -> None:
    """Refuse a class of the script itself, which memory devices do not run."""
    module = mode.rpartition(":")[0]
    path = Path(module if module.endswith(".py") else f"{module.replace('.', '/')}.py")
    if script is not None and module and path.resolve() == Path(script).resolve():
        raise ConfigError(
            f"mode {mode}: memory devices cannot import a class from the script {script}; put it into its own file",
            key="mode",
        )


def digest_of(strategy: object) -> str:
    """Return a digest of a rule's class, options and module; "" of coarse's own."""
    kind = type(strategy)
    if kind.__module__.startswith("coarse."):
        return ""
    module = sys.modules[kind.__module__]
    source = inspect.getsource(module) if getattr(module, "__file__", None) else ""
    options = repr(strategy) if is_dataclass(kind) else ""  # another's repr may have an address in it
    return hashlib.sha256(f"{kind.__qualname__}\0{options}\0{source}".encode()).hexdigest()


def made(kind: type[Rule], options: Mapping[str, Any], mode: str) -> Rule:
    """Return an instance of a user's class with some options; ConfigError where it does not take one, or lacks one."""
    known = plain_options_of(kind) if is_dataclass(kind) else {}
    for name, value in options.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            wanted = ", ".join(known) or "none (is it a dataclass?)"
            raise ConfigError(f"strategy {mode} has no option {name!r}; it has {wanted}{hint}", key="strategy")
        known[name].check(value, f"strategy {mode}: {name}")
    for name, option in known.items():
        if name not in options and option.default is MISSING:
            raise ConfigError(f"strategy {mode} wants its option {name!r}; set it in [strategy]", key="strategy")
    try:
        return kind(**options)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"strategy {mode}: {error}", key="strategy") from error


def module_named(name: str) -> ModuleType:
    """Return a module by its name, or by its file's path."""
    if not name.endswith(".py"):
        if "" not in sys.path and (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
        return import_module(name)
    path = Path(name).resolve()
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path) and module.__name__ != "__main__":
            return module
    name = path.stem if path.stem not in sys.modules else f"{path.stem} at {path}"
    spec = spec_from_file_location(name, path)
    assert spec is not None, "a path that ends in .py has a loader"
    assert spec.loader is not None, "a path that ends in .py has a loader"
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def strategy_of(config: Config) -> Strategy:
    """Return the strategy that a configuration asks for.

    Raises:
        ConfigError: settings that contradict the mode, or no such class or option.
    """
    if config.mode == DENSE:
        _require_dense(config)
    return strategy_named(
        config.mode,
        policy=config.policy,
        options=config.strategy,
        routing=config.routing,
        collective=config.collective,
    )


def on_workers(own: Strategy, of_job: Strategy) -> Strategy:
    """Return an optimizer's strategy as the job's devices can follow it: with the job's routes and way to sum.

    Raises:
        ConfigError: it plans otherwise than the job's strategy, which memory devices have.
    """
    if type(own).plan is not type(of_job).plan:
        raise ConfigError(
            f"{type(own).__name__} plans otherwise than {type(of_job).__name__}, the job's strategy, by which memory "
            "devices sum; give it to the job: coarse run --mode FILE.py:CLASS",
            key="strategy",
        )
    if isinstance(own, Coarse) and isinstance(of_job, Coarse):
        return replace(own, routing=of_job.routing, collective=of_job.collective)
    return own


def placement_of(partition: PartitionTable, config: Config, strategy: Strategy) -> Placement:
    """Return the places of the partition's ranks, as the strategy uses them.

    Raises:
        ConfigError: the strategy, or a fixed route, cannot work with this partition.
    """
    nodes = sorted({place.node for place in partition.places})
    placement = Placement(
        client_nodes=tuple(nodes.index(partition.node_of_client(c)) for c in range(partition.num_workers)),
        device_nodes=tuple(nodes.index(partition.node_of_device(d)) for d in range(partition.num_devices)),
        local_proxies=partition.local_proxies,
        ranks=(*partition.workers, *partition.devices),
        planner=strategy,
        num_sync_groups=config.num_sync_groups,
    )
    strategy.check(placement.cluster)
    return placement


def _require_dense(config: Config) -> None:
    """Refuse settings that contradict one device for all (COARSE III-B)."""
    if config.collective == "ring":
        raise ConfigError(
            'mode "dense" has one memory device for all, which cannot form a ring, but collective is "ring"; leave '
            'collective out, or use mode "coarse"',
            key="collective",
        )
    if isinstance(config.routing, FixedRouting):
        raise ConfigError(
            'mode "dense" sends whole tensors to the first memory device, but the routing is fixed; leave routing out, '
            'or use mode "coarse"',
            key="routing",
        )
