"""`coarse run`: a training job as one mpirun, workers and light memory-device ranks together."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from coarse.cli.fields import Asked, with_options
from coarse.cli.own_mode import OWN_MODE, SetOptions
from coarse.cli.wrong_input import wrong_input_ends_with_2
from coarse.errors import ConfigError
from coarse.launch.cluster.rate import LinkRate, rate_from_text
from coarse.launch.cluster.run import ClusterRun
from coarse.launch.cluster.shape import MOST_NODES, shape_from_text
from coarse.launch.exit_reporter import STARTUP
from coarse.launch.mpirun import JobEnd, free_port, run_forwarding_signals, run_job
from coarse.launch.rank_exits import Departures
from coarse.launch.restarts import run_with_restarts
from coarse.launch.training_run import TrainingRun, chosen_partition
from coarse.launch.watch import Watch
from coarse.protocol.commits import MOST_COMMUTATIVE
from coarse.protocol.config import BY_WALL, POOL, REPEATABLE_ROUTING, Config, EmulateSettings, load_config
from coarse.protocol.endurance import Endurance
from coarse.protocol.fields import options_of
from coarse.protocol.partition_file import stated_partition
from coarse.protocol.run_file import NO_RESULT, RUN_FILE, WITHOUT_RESULT
from coarse.strategy.named import BUILT_IN, require_no_script, strategy_of, strategy_text
from coarse.strategy.sharding import LIVE
from coarse.transport.launcher import environ_of_new_job

app = typer.Typer(add_completion=False)

_MACHINE_HELP = (
    "A machine that is not here, a preset of coarse predict or a machine file: what the script communicates takes the "
    "time that its links and memory devices say, and what it computes this core's CPU time over a scale."
)
_DEVICES_HELP = (
    "Ranks that are memory devices, by default what [launch] of the configuration says, or 2; with --cluster on each "
    "node, or M."
)
_REPLACES_HELP = (
    "Backends of torch.distributed, such as gloo,nccl, in whose place coarse is taken where a script asks for them."
)
_SHARDING_HELP = (
    "Overrides the configuration's mode of coarse.torch.fully_shard, for scripts that state none: fsdp, hybrid, "
    "zeropp, fcdp or odc."
)
_MODES_HELP = (
    "With --machine: some modes, such as coarse,allreduce,fcdp. The script runs in each by the same times of compute, "
    "and they are printed and drawn beside each other. Those of fully_shard are for scripts that state none."
)
_CLUSTER_HELP = (
    f"A cluster in a box: N nodes (at most {MOST_NODES}), each with M workers and with memory devices, as network "
    "namespaces of this machine. Needs root."
)


@app.command(context_settings={"allow_interspersed_args": False})
@with_options(Endurance, into="endures", are_last=True)
@with_options(
    EmulateSettings,
    optional=tuple(options_of(EmulateSettings)),
    helps={"machine": _MACHINE_HELP, "out": "The folder for what an emulated run gives; results/emulated by default."},
    are_last=True,
)
def run(
    asked: Asked,
    endures: Asked,
    script: Annotated[str, typer.Argument(help="The Python file that every worker runs; with -m, a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="Run a module, as python -m does.")] = False,
    workers: Annotated[int | None, typer.Option(help="Ranks that run the script; 2 by default.")] = None,
    devices: Annotated[int | None, typer.Option(help=_DEVICES_HELP)] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with the configuration.")] = None,
    mode: Annotated[
        str | None, typer.Option(help=f"Overrides the configuration's mode: {', '.join(BUILT_IN)}, {OWN_MODE}.")
    ] = None,
    modes: Annotated[str | None, typer.Option(help=_MODES_HELP)] = None,
    policy: Annotated[str | None, typer.Option(help="Overrides the configuration's policy.")] = None,
    sharding: Annotated[str | None, typer.Option(help=_SHARDING_HELP)] = None,
    options: SetOptions = None,
    replaces: Annotated[str | None, typer.Option(metavar="BACKENDS", help=_REPLACES_HELP)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the mpirun line and start nothing.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the mpirun line, on standard error.")] = False,
    cluster: Annotated[str | None, typer.Option(metavar="NxM", help=_CLUSTER_HELP)] = None,
    rate: Annotated[str | None, typer.Option(help="Of each node's link, such as 100mbit (kbit, mbit, gbit).")] = None,
) -> None:
    """Start workers and light memory-device ranks in one mpirun, and end with its status.

    A partition in the configuration says how many ranks there are; then --workers and --devices are not needed.
    """
    with wrong_input_ends_with_2():
        config_path, endurance = str(config.resolve()) if config else None, Endurance(**endures)
        limit = _limit_of_links(rate, cluster, workers)

        def requested(mode: str | None, asked: Asked, every: Sequence[str]) -> tuple[TrainingRun, Config]:
            shards, mode = (mode, None) if mode in LIVE else (sharding, mode)
            strategy = strategy_text(options, mode, [each for each in every if each not in LIVE])
            emulate = _emulated(asked)
            chosen = {
                "COARSE_CONFIG": config_path, "COARSE_MODE": mode, "COARSE_POLICY": policy, "COARSE_STRATEGY": strategy,
                "COARSE_EMULATE": emulate, "COARSE_SHARDING": shards,
            }  # fmt: skip
            configured = _configured(chosen, cluster, None if module else script)
            _require_restartable(configured, endurance, cluster)
            counts = workers, None if cluster else devices, configured.launch.devices
            stated = chosen_partition(configured.partition, *counts)
            _require_room(configured, stated)
            fixed = _repeatable(configured, cluster, stated) if endurance.is_asked else {}
            return TrainingRun(
                script=script, is_module=module, arguments=tuple(arguments or ()), partition=stated, mode=mode,
                policy=policy or fixed.get("policy"), routing=fixed.get("routing"), sharding=shards, strategy=strategy,
                emulate=emulate, is_emulated=configured.emulate is not None, config_path=config_path, replaces=replaces,
            ), configured  # fmt: skip

        if modes is not None:
            _run_in_modes(modes, mode, asked, requested, dry_run=dry_run, verbose=verbose)
        request, configured = requested(mode, asked, [mode or ""])
        if "--help" in request.arguments and not dry_run:
            _show_help(("-m", script) if module else (script,), request.arguments)
        if cluster is None:
            raise typer.Exit(_run_here(request, configured, endurance, dry_run=dry_run, verbose=verbose))
        per_node = devices or (None if configured.partition else configured.launch.devices)
        in_box = ClusterRun(request, cluster, limit, devices_per_node=per_node, is_stated=bool(configured.partition))
        _run_in_cluster(in_box, configured, endurance, dry_run=dry_run, verbose=verbose)


def _emulated(asked: Asked) -> str | None:
    """Return the options' settings of [emulate] as COARSE_EMULATE has them, or None if they state none."""
    paths = {"out", "compute", "save_compute"} | ({"machine"} if asked.get("machine", "").endswith(".toml") else set())
    stated = {
        key: str(Path(value).resolve()) if key in paths and (key, value) != ("compute", BY_WALL) else value
        for key, value in asked.items()
    }
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in stated.items()) or None


def _show_help(program: Sequence[str], arguments: Sequence[str]) -> NoReturn:
    """Show a script's own help once, and not for each worker."""
    raise typer.Exit(subprocess.run([sys.executable, *program, *arguments], check=False).returncode)


def _require_room(configured: Config, partition: str) -> None:
    """Raise ConfigError, before any rank starts, if an emulated job's machine has no room for the ranks."""
    if configured.emulate is None:
        return
    from coarse.emulation.modelled import modelled_cluster  # which loads the hardware's models, as no live run does
    from coarse.hardware.presets import machine_named

    table, machine = stated_partition(partition), machine_named(configured.emulate.machine)
    counts = table.num_workers, table.num_devices
    modelled_cluster(machine, configured.emulate, *counts, configured, strategy_of(configured))


def _require_one_network(configured: Config, cluster: str | None) -> None:
    if configured.emulate is not None and cluster is not None:
        raise ConfigError(
            "--machine emulates the links between nodes, and --cluster makes real ones; give one of the two",
            key="machine",
        )


def _limit_of_links(rate: str | None, cluster: str | None, workers: int | None) -> LinkRate | None:
    """Return the rate that --rate states; raise ConfigError if an option conflicts with --cluster."""
    if cluster is None and rate is not None:
        raise ConfigError(f"--rate {rate} limits the links of a cluster in a box; give --cluster too, such as 2x2")
    if cluster is not None and workers is not None:
        raise ConfigError(f"--workers and --cluster {cluster} both say how many workers; leave out --workers")
    return None if rate is None else rate_from_text(rate)


def _run_in_modes(
    text: str,
    mode: str | None,
    asked: Asked,
    requested: Callable[[str | None, Asked, Sequence[str]], tuple[TrainingRun, Config]],
    *,
    dry_run: bool,
    verbose: bool,
) -> NoReturn:
    from coarse.cli.several_modes import modes_in, run_in

    _, configured = requested(None, asked, text.split(","))
    modes = modes_in(text, mode, configured)
    requests = {each: requested(each, asked, modes) for each in modes}  # all are possible before any runs
    if dry_run:
        for request, _ in requests.values():
            _show(shlex.join(request.argv()), dry_run=True, verbose=False)
        raise typer.Exit(0)

    def run_one(mode: str, asked: Asked) -> int:
        request, own = requested(mode, asked, modes)
        return _run_here(request, own, Endurance(), dry_run=False, verbose=verbose)

    raise typer.Exit(run_in(modes, asked, configured, run_one))


def _account_of(configured: Config) -> Path | None:
    """Return the path at which an emulated job writes its account, or None for another job."""
    return None if configured.emulate is None else Path(configured.emulate.out) / RUN_FILE


def _require_restartable(configured: Config, endures: Endurance, cluster: str | None) -> None:
    """Raise ConfigError if --restarts, --keep and --resume conflict with another option."""
    if endures.is_asked and configured.emulate is not None:
        raise ConfigError(
            "--restarts, --keep and --resume go on with a job in which emulated time would begin anew; leave out "
            "--machine, or them",
            key="emulate",
        )
    if endures.preload is not None and cluster is not None:
        raise ConfigError("--preload: ranks of nodes in a box are forked by no other process; leave it out")


def _repeatable(configured: Config, cluster: str | None, partition: str) -> dict[str, str]:
    """Return the policy and routing for repeatable bits of more than two workers, unless they are stated."""
    shape = None if cluster is None else shape_from_text(cluster, 1)
    num_workers = stated_partition(partition).num_workers if shape is None else shape.num_workers
    if num_workers <= MOST_COMMUTATIVE or configured.decision is not None:
        return {}
    fixed = {}
    if "COARSE_POLICY" not in os.environ and configured.policy == Config().policy:
        fixed["policy"] = "devices"
    has_rings = configured.collective == "ring" or (shape is not None and shape.num_nodes > 1)
    if has_rings and configured.routing == Config().routing:
        fixed["routing"] = REPEATABLE_ROUTING
    return fixed


def _run_here(
    request: TrainingRun, configured: Config, endures: Endurance, *, dry_run: bool, verbose: bool
) -> int:
    """Return the job's status; 0 for a dry run, and 3 if an emulated job's account has no result."""
    account = _account_of(configured)
    request = replace(request, meeting_port=free_port())
    if (num_nodes := os.environ.get("SLURM_NNODES", "1")) != "1":
        remark = f"coarse: all ranks are on this machine, one of the {num_nodes} nodes of the allocation"
        print(f"{remark}; mpirun starts some on each (docs/cluster.md)", file=sys.stderr, flush=True)
    argv = request.argv()
    _show(shlex.join(argv), dry_run=dry_run, verbose=verbose)
    if dry_run:
        return 0
    if account is not None:
        account.unlink(missing_ok=True)
    if endures.is_asked:
        return _run_again(request, endures)
    watch = Watch(Departures(request.num_ranks, request.light_ranks()))
    status = run_forwarding_signals(argv, os.environ, watch)
    if status or account is None or not account.exists():
        return status
    return WITHOUT_RESULT if json.loads(account.read_text(encoding="utf-8"))[NO_RESULT] else 0


def _run_again(request: TrainingRun, endures: Endurance) -> int:
    """Return the status of a job that is started again when one of its processes dies."""

    def attempt(told: Mapping[str, str], forked_at: str | None, end_others: Callable[[], None]) -> JobEnd:
        watch = Watch(Departures(request.num_ranks, request.light_ranks(), at_once=True))
        again = replace(request, meeting_port=free_port(), forked_at=forked_at)
        return run_job(again.argv(), os.environ, watch, at_once=end_others, told=told)

    return run_with_restarts(attempt, request.state_places, endures, os.environ)


def _show(line: str, *, dry_run: bool, verbose: bool) -> None:
    """Print the started command: the only output of a dry run, and no part of a job's own output."""
    if dry_run:
        print(line, flush=True)
    elif verbose:
        print(f"coarse: {line}", file=sys.stderr, flush=True)


def _run_in_cluster(
    nodes: ClusterRun, configured: Config, endures: Endurance, *, dry_run: bool, verbose: bool
) -> None:
    if dry_run:
        for command in nodes.plan.commands():
            print(f"{command.place}: {shlex.join(command.argv)}")
    _show(f"{nodes.plan.head}: {shlex.join(nodes.argv())}", dry_run=dry_run, verbose=verbose)
    if not dry_run:
        raise typer.Exit(nodes.run(endures, is_pooled=configured.faults.place == POOL))


def _configured(chosen: Mapping[str, str | None], cluster: str | None, script: str | None) -> Config:
    """Return the configuration that every rank will read, with these variables.

    Raise ConfigError for all that every rank would refuse later. `script` is the path of a file, if that is what runs.
    """
    exports = {name: value for name, value in chosen.items() if value is not None}
    configured = load_config(None, {**environ_of_new_job(os.environ, STARTUP), **exports})
    _require_one_network(configured, cluster)
    if script is not None:
        require_no_script(configured.mode, script)
    strategy_of(configured)
    return configured
