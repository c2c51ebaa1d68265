"""`coarse check --strategy`: faults of a strategy, found before any rank starts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from coarse.errors import CoarseError, ConfigError
from coarse.hardware.compute import profile_for
from coarse.hardware.models import Precision, model_named
from coarse.hardware.presets import machine_named
from coarse.protocol.units import GIB
from coarse.simulation.checks.plans import NUM_LAYOUTS, WrongStrategy, require_plans
from coarse.simulation.checks.sums import NUM_LAYOUTS as NUM_SUM_LAYOUTS
from coarse.simulation.checks.sums import NUM_ORDERS, require_sums
from coarse.simulation.checks.wires import require_wires
from coarse.simulation.report import Report
from coarse.simulation.scenario import Scenario
from coarse.simulation.sharded.modes import ShardedPolicy
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.simulation.training import simulate
from coarse.strategy.named import mode_name, place_of, strategy_named
from coarse.strategy.named_sharding import names_sharding, sharding_named
from coarse.strategy.rounds import first_to_devices
from coarse.strategy.sharding import SIMULATED, gathers, keeps_of
from coarse.strategy.strategy import Strategy, require_lag, require_round_of

_MACHINE, _MODEL, _BATCH = "aws-p3", "resnet50", 64
_CLUSTERS = ((4, 1), (8, 2))
"""Workers and nodes of the simulated jobs."""
_SHARDED_MACHINE, _SHARDED_MODEL, _SHARDED_BATCH, _SHARDED_GPUS = "fcdp-a40-10gbe", "gpt-10b", 8, 8
_ROUNDS, _BUCKETS = 1_000, 4
_PROCESS_LAYOUTS = 300
"""Layouts that each of two processes plans."""


Checks = tuple[tuple[str, Callable[[], str]], ...]
"""Checks in order: (claim, function that returns the text of its result)."""


class Finding(NamedTuple):
    """Result of one check: its claim and its text."""

    what: str
    said: str
    is_right: bool


def findings(mode: str, options: Mapping[str, object]) -> Iterator[Finding]:
    """Yield the findings of a strategy's checks, in order; the first failed one is the last.

    Raises:
        ConfigError: no such class, or options that it does not take.
    """
    yield from _run(_checks_of_sharding(mode, options) if names_sharding(mode) else _checks_of_strategy(mode, options))


def _run(checks: Checks) -> Iterator[Finding]:
    for what, check in checks:
        try:
            yield Finding(what, check(), is_right=True)
        except CoarseError as wrong:
            yield Finding(what, str(wrong), is_right=False)
            return
        except Exception as error:
            function, line = place_of(error)
            yield Finding(what, f"{function} ({line}) raised {type(error).__name__}: {error}", is_right=False)
            return


def _checks_of_sharding(mode: str, options: Mapping[str, object]) -> Checks:
    sharding = sharding_named(mode, SIMULATED, options=options)

    def uses() -> str:
        kept = " and ".join(
            f"{'trained' if is_trainable else 'frozen'} units: {keeps_of(sharding, is_trainable=is_trainable)}"
            for is_trainable in (True, False)
        )
        return f"{len(list(gathers(sharding)))} gathers can be carried out; what is kept of {kept}"

    def simulated(num_nodes: int, lora_rank: int) -> str:
        scenario = ShardedScenario(
            machine=replace(machine_named(_SHARDED_MACHINE), num_nodes=num_nodes), model_name=_SHARDED_MODEL,
            policy=ShardedPolicy(sharding=sharding), batch=_SHARDED_BATCH, num_nodes=num_nodes,
            gpus_per_node=_SHARDED_GPUS, lora_rank=lora_rank,
        )  # fmt: skip
        report = scenario.run()
        crossed = report.crossing_nbytes() / num_nodes / GIB
        return f"{report.iteration_s:.4g} s an iteration, {crossed:.3g} GiB leave a node (simulated)"

    return (
        ("every use of a unit", uses),
        *(
            (
                f"{_SHARDED_MODEL}{' with LoRA' if rank else ''}, {nodes} x {_SHARDED_GPUS} GPUs of {_SHARDED_MACHINE}",
                partial(simulated, nodes, rank),
            )
            for nodes, rank in ((1, 0), (2, 0), (2, 8))
        ),
    )


def _checks_of_strategy(mode: str, options: Mapping[str, object]) -> Checks:
    def make() -> Strategy:
        return strategy_named(mode, options=options)

    make()
    return (
        (f"plans on {NUM_LAYOUTS:,} layouts, asked by two ranks", lambda: f"{require_plans(make):,} plans are right"),
        ("rounds of updates, and their period", lambda: _rounds(make())),
        ("plans of two processes, whose hashes differ", lambda: _by_processes(mode, options)),
        (
            f"sums of plain arrays on {NUM_SUM_LAYOUTS + 2} layouts, {NUM_ORDERS} orders of messages",
            lambda: f"{require_sums(make):,} sums are right",
        ),
        ("what travels, and late sums", lambda: _wires(make)),
        *(
            (f"{_MODEL}, batch {_BATCH}, on {_MACHINE}, {w} workers, {n} nodes", _simulation(mode, options, w, n))
            for w, n in _CLUSTERS
        ),
    )


def _rounds(strategy: Strategy) -> str:
    """Return a text on whether rounds repeat; predictions take their mean over such a period."""
    if type(strategy).round is Strategy.round:
        return "every round is as decided"
    period, decided = strategy.period, first_to_devices(_BUCKETS, _BUCKETS)
    if type(period) is not int or period < 1:
        raise WrongStrategy(f"{type(strategy).__name__}.period must be at least 1, got {period!r}", key="mode")
    every = [require_round_of(strategy, number, decided) for number in range(_ROUNDS + period)]
    unlike = [number for number in range(_ROUNDS) if every[number] != every[number + period]]
    if unlike and unlike[-1] >= _ROUNDS - period:
        raise WrongStrategy(
            f"{type(strategy).__name__}.round({unlike[-1]}) is another than round({unlike[-1] + period}), and period "
            f"says that rounds repeat after {period}; correct period",
            key="mode",
        )
    if not unlike:
        return f"they repeat after {period}"
    begin = unlike[-1] + 1
    return f"they repeat after {period} from round {begin} on; --iterations {begin + period} predicts these"


def _wires(make: Callable[[], Strategy]) -> str:
    """Measure a wire on a bucket here, and return a text with the lag of its sums."""
    lag = require_lag(make())
    late = f"sums come {lag} rounds late" if lag else "sums come in their round"
    found = require_wires(make)
    if found is None:
        return f"values travel as they are; {late}"
    return (
        f"{found.sent_share:.3g} of the bytes at 2 workers, a first sum is off by {found.error:.3g} and 50 of equal "
        f"values by {found.error_of_many:.3g}; encodes {found.encode_bytes_per_s / 1e9:.3g} GB/s and decodes "
        f"{found.decode_bytes_per_s / 1e9:.3g} (measured); {late}"
    )


def _by_processes(mode: str, options: Mapping[str, object]) -> str:
    """Compare the plans of two processes with different random hashes, under which sets have other orders."""
    program = (sys.executable, "-m", "coarse.simulation.checks.plans", mode, json.dumps(options))
    digests = []
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        command = [*program, str(_PROCESS_LAYOUTS), "0"]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
        if done.returncode:
            raise WrongStrategy(f"a process could not plan: {done.stderr.strip().splitlines()[-1]}", key="mode")
        digests.append(done.stdout)
    if digests[0] != digests[1]:
        raise WrongStrategy(
            f"{mode_name(mode)} plans otherwise in another process: it follows a set's order, a hash, the clock or "
            "chance; let it depend on its arguments alone",
            key="mode",
        )
    return f"{_PROCESS_LAYOUTS} layouts are equal"


def _simulation(mode: str, options: Mapping[str, object], num_workers: int, num_nodes: int) -> Callable[[], str]:
    model, machine = model_named(_MODEL), machine_named(_MACHINE)

    def simulated() -> str:
        try:
            scenario = Scenario(
                machine=replace(machine, num_nodes=num_nodes),
                model=model,
                profile=profile_for(model, machine, None, _BATCH, Precision.FP32),
                mode=mode,
                options=options,
                num_workers=num_workers,
                num_nodes=num_nodes,
            )
            scenario.job_by(())
        except ConfigError as refused:
            return f"refused: {refused}"
        job = scenario.job()
        report: Report = simulate(job)
        moved = sum(report.link_bytes.values()) / len(report.iterations) * num_workers / GIB
        said = f"{report.iteration_s * 1e3:.4g} ms an iteration, {moved:.3g} GiB over all links (simulated)"
        return said + ("; encoding taken as free: state its rates" if job.encodes_for_nothing else "")

    return simulated
