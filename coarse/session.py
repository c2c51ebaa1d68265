"""Runtime of the process: made by `init`, ended by `shutdown`, at exit, or by an error."""

import atexit
import dataclasses
import os
import platform
import re
import signal
import socket
import sys
import threading
import traceback
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from coarse.errors import CoarseError, ConfigError, NotInitializedError, StallError, UnsupportedError
from coarse.protocol.clock import WallClock
from coarse.transport.launcher import is_below_rank, note_start
from coarse.transport.mpi_library import start_mpi
from coarse.transport.mpirun_watch import MpirunWatch
from coarse.transport.node_rendezvous import LauncherLine, NodeJob, arrival, spans_hosts
from coarse.transport.torchrun_start import TorchrunWorker, become_rank, say_goodbye, start_in_time

if TYPE_CHECKING:
    from coarse.protocol.config import Config
    from coarse.runtime import Runtime

_runtime: "Runtime | None" = None
_mpirun: MpirunWatch | None = None
_was_shut_down = False
_has_failed = False
_forked = False
_hook_before = sys.excepthook
"""Script's own hook for uncaught errors, if it has one."""
_refusal: CoarseError | None = None
"""Error that all ranks raised together at the start."""
_ORDERED = ("x86_64", "AMD64")
"""Processors whose stores others see in order."""
_OTHERS_DEATH = "MPI_ERR_PROC_FAILED"
"""Text in MPI's errors if another rank has died."""
_LAST_WORDS_S = 0.3
"""Seconds for mpirun to read a rank's output. It drops the rest when it sees the rank's end."""
_FORKED = (
    "this process was forked from a rank and cannot use its device memory; start data loaders "
    "before coarse.init(), or let the parent call coarse"
)
_BELOW = (
    "this interpreter was started by a rank's script, as by multiprocessing's spawn and forkserver, and is no rank "
    "itself; let the parent call coarse, and call coarse.init() below `if __name__ == '__main__':`"
)


def init(config: "Config | Mapping[str, object] | str | Path | None" = None) -> None:
    """Join the job; a worker returns once all workers are ready, a memory device serves and then exits.

    A repeated call does nothing, unless the configuration differs.

    Args:
        config: a Config, a mapping, or the path of a TOML file; None reads COARSE_CONFIG.

    Raises:
        ConfigError: a setting or partition table that cannot work (on all ranks); another one than that of the job; a
            process that is alone, though its launcher says that it started several.
        CapacityError: devices larger than the machine's memory.
        StallError: ranks of this node that have not called it within startup_timeout_s, or ranks of other hosts that
            have not been heard of over MPI.
        NotInitializedError: a process that was shut down, was forked from a rank, or was started by a rank's script.
    """
    if is_below_rank(os.environ, os.getpid(), sys.orig_argv) and not _forked:
        raise NotInitializedError(_BELOW)
    if _runtime is not None and not _forked:
        _require_same_config(_runtime, config)
        return
    worker = TorchrunWorker.of(os.environ)
    settings = _settled(config, is_agreed=worker is None)
    if worker is not None and not has_joined() and not _forked:
        try:
            become_rank(worker, settings.partition, settings.launch, settings.startup_timeout_s)
        except ConfigError as refused:
            from coarse.protocol.config import skipped_file

            if remark := skipped_file(config, os.environ):
                raise ConfigError(f"{refused}. {remark}", key=refused.key) from None
            raise
    with start_in_time(worker, settings.startup_timeout_s):
        _join(config, settings.startup_timeout_s, may_be_alone=settings.launch.alone)


def _require_same_config(runtime: "Runtime", config: "Config | Mapping[str, object] | str | Path | None") -> None:
    """Raise ConfigError if `init` is called again with other settings."""
    from coarse.protocol.config import Config, load_config

    if config is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the job has its configuration, and warned of it
        asked, default = load_config(config, os.environ), Config()
    for field in dataclasses.fields(asked):
        here, there = getattr(runtime.config, field.name), getattr(asked, field.name)
        if there not in (here, getattr(default, field.name)):
            raise ConfigError(
                f"init() came again with {field.name} = {there!r}, but the job runs with {here!r}; call init() once, "
                "or without a configuration",
                key=field.name,
            )


def serve() -> None:
    """Join the job as a light memory device, which states no configuration and waits without a limit."""
    _join(None, None, may_be_alone=False)


def _join(
    config: "Config | Mapping[str, object] | str | Path | None", timeout_s: float | None, *, may_be_alone: bool
) -> None:
    """Carry `init` out; `timeout_s` is the time for the node's other ranks to come (see `arrival`)."""
    global _runtime, _mpirun
    if _runtime is not None or _was_shut_down or _forked:
        raise NotInitializedError(_why_not_again())
    require_processor()
    if "mpi4py.MPI" in sys.modules:
        _require_mpi_not_ended()
    _mpirun = _mpirun or MpirunWatch.of(os.environ)
    with LauncherLine(os.environ) as line:
        line.say_waits()
        try:
            with arrival(NodeJob.of(os.environ), timeout_s, WallClock()):
                runtime = _open_runtime(config, timeout_s, may_be_alone=may_be_alone)
        except StallError:
            if "mpi4py.MPI" in sys.modules:  # the script has started MPI: see _on_uncaught
                watch_over()
            raise
        if runtime is None:  # a memory device, and the script has ended without init
            sys.exit(0)
        line.say_joined()
    _runtime = runtime
    if runtime.is_device_only:
        ignore_users_signals()
    runtime.start()
    if runtime.is_device_only:
        shutdown()
        if runtime.has_failed:
            with LauncherLine(os.environ) as line:
                line.say_follows()
        sys.exit(1 if runtime.has_failed else 0)
    if runtime.has_light_devices:
        from coarse.transport.comm_world import guard_comm_world

        guard_comm_world()


def require_processor() -> None:
    """Raise UnsupportedError if mapped records could be read before they are written; see [Note: fences]."""
    if platform.machine() not in _ORDERED:
        raise UnsupportedError(
            f"ranks share memory in ways that need x86-64's order of stores, and {socket.gethostname()} is a "
            f"{platform.machine()} machine; run on {' or '.join(_ORDERED)}, or simulate with coarse predict"
        )


def _open_runtime(
    config: "Config | Mapping[str, object] | str | Path | None", timeout_s: float | None, *, may_be_alone: bool
) -> "Runtime | None":
    """Open this rank's parts over MPI, together with all ranks; None on a device that no worker joins."""
    global _refusal
    start_mpi()
    from coarse.runtime import Runtime
    from coarse.transport.comm_world import WHOLE, on_finalize, require_others, workers_told

    require_others(os.environ, may_be_alone=may_be_alone)
    told = workers_told()
    if told is not None:
        told.say(comes=True)
        if told.includes_this_rank:
            told.narrow_comm_world()
        elif not told.come(WallClock()):
            return None
    on_finalize(shutdown)
    watch_over()
    if spans_hosts(os.environ):
        from coarse.transport.meeting import meet

        meet(WHOLE, timeout_s, WallClock())
    try:
        return Runtime(config)
    except CoarseError as error:
        _refusal = error
        raise  # all ranks raise it together
    except BaseException as error:
        _end_together(error)
        raise


def _settled(config: "Config | Mapping[str, object] | str | Path | None", *, is_agreed: bool) -> "Config":
    """Return the configuration.

    Ranks that have yet to agree get the default one in place of a wrong one: all are told of the error later.
    """
    from coarse.protocol.config import Config, load_config

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the runtime reads it again, and warns
        try:
            return load_config(config, os.environ)
        except (CoarseError, OSError):
            if not is_agreed:
                raise
            return Config()


def shutdown() -> None:
    """Leave the job; also runs at exit. Does nothing where init() was not called."""
    global _runtime, _mpirun, _was_shut_down, _has_failed
    runtime, _runtime = _runtime, None
    if runtime is not None and not _forked:
        _was_shut_down = True
        try:
            runtime.close()
        finally:
            _has_failed = runtime.has_failed
        if _mpirun is not None:
            _mpirun.close()
            _mpirun = None
        if not _has_failed:
            say_goodbye()
        with LauncherLine(os.environ) as line:
            line.say_moved(runtime.carried_between_nodes(), runtime.reduced_bytes)


def is_initialized() -> bool:
    """Return whether `init` has been called and `shutdown` has not."""
    return _runtime is not None and not _forked


def current() -> "Runtime":
    """Return the runtime; raise NotInitializedError if there is none."""
    if _forked:
        raise NotInitializedError(_FORKED)
    if _runtime is None:
        state = "after coarse.shutdown()" if _was_shut_down else "before coarse.init()"
        raise NotInitializedError(f"this call came {state}; call coarse.init() first")
    return _runtime


def _why_not_again() -> str:
    """Return why a process that has called `init` cannot call it again."""
    if _forked:
        return _FORKED
    if _runtime is not None:
        return "coarse.init() was called before in this process; call it once, at the start"
    return (
        "coarse.init() was called after coarse.shutdown(), when the memory devices have ended; "
        "shut down once, at the end of the program"
    )


def _require_mpi_not_ended() -> None:
    """Raise UnsupportedError if the script has ended MPI."""
    from mpi4py import MPI

    if MPI.Is_finalized():
        raise UnsupportedError(
            f"MPI rank {_world_rank()}: the script has ended MPI (MPI.Finalize), which cannot start again; call "
            "coarse.init() before that"
        )


def has_joined() -> bool:
    """Return whether `init` has succeeded in this process, now or before."""
    return _runtime is not None or _was_shut_down


def ignore_users_signals() -> None:
    """Ignore, on a memory device, signals of mpirun and schedulers to all ranks that the script expects.

    A handler in C, as of faulthandler, stays: Python does not know it, so the kernel is asked.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    status = Path("/proc/self/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        is_pythons = signal.getsignal(number) is not signal.SIG_DFL
        if is_pythons or not caught & 1 << number - 1:
            signal.signal(number, signal.SIG_IGN)


def watch_over() -> None:
    """End the job from now on after an uncaught error, since other ranks may wait for this one in MPI."""
    global _hook_before
    if sys.excepthook is _on_uncaught:
        return  # after a start that was refused
    note_start(os.environ, os.getpid())
    _hook_before = sys.excepthook
    atexit.register(_leave_without_mpi)  # after shutdown: the last registered is called first
    atexit.register(shutdown)
    os.register_at_fork(after_in_child=_on_fork)
    sys.excepthook = _on_uncaught
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_terminate)


def _on_fork() -> None:
    """Exclude a forked child from the job, and let SIGTERM end it as any process.

    Device memory is not even mapped in the child.
    """
    global _forked
    _forked = _runtime is not None or _forked
    if signal.getsignal(signal.SIGTERM) is _on_terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Tell the node's ranks, print the error and end the job, without a wait in MPI_Finalize for the dead.

    The first cause is printed in full. A rank that ends because of another prints one line.
    """
    if sys.__stderr__ is not None:
        sys.stderr = sys.__stderr__  # torch.distributed's hook around this one would print only after it returns
    if _forked:
        traceback.print_exception(kind, error, where)
        os._exit(1)
    if _runtime is not None and _runtime.placement.num_clients == 1 and _is_interactive():
        _hook_before(kind, error, where)  # its user goes on, and no other worker waits
        return
    rank = _world_rank()
    is_shown_by_another = error is _refusal and rank != 0
    follows = is_shown_by_another or (_runtime is not None and _runtime.follows(error))
    with LauncherLine(os.environ) as line:
        if follows:
            line.say_follows()
        else:
            line.say_fails(1, _digest_of(error))
    if is_shown_by_another:
        sys.stderr.write(f"coarse: MPI rank {rank} raised {kind.__name__}, as rank 0 shows\n")
        return
    text = f"coarse: MPI rank {rank} ends with {kind.__name__}: {error}\n"
    if not follows:
        text = _first_line(f"coarse: MPI rank {rank} raised {kind.__name__}")
        if _hook_before is sys.__excepthook__:
            text += "".join(traceback.format_exception(kind, error, where))
        if _runtime is not None:
            _runtime.warn_peers(f"MPI rank {rank} raised {kind.__name__}: {error}")  # they need not show it, then
    sys.stderr.write(text)
    sys.stderr.flush()
    if not follows and _hook_before is not sys.__excepthook__:
        _hook_before(kind, error, where)
    if follows and _runtime is not None and _runtime.has_failed:
        _runtime.hand_on_death()
        os._exit(1)  # others know as well, and many aborts at once can lock up mpirun
    if _runtime is not None or isinstance(error, StallError):
        from coarse.runtime import end_job

        end_job()  # the ranks that have not come would be waited for in MPI_Finalize


def _digest_of(error: BaseException) -> int:
    """Return 32 bits of an error's kind and text without its numbers, which may be ranks and places.

    The result is 0 for an error which says that others are missing, since that may not repeat.
    """
    text = re.sub(r"[0-9]+", "", f"{type(error).__name__}: {error}")
    return 0 if isinstance(error, StallError) else zlib.crc32(text.encode()) or 1


def _is_interactive() -> bool:
    """Return whether the interpreter asks for another line after an error, as by `python -i`."""
    return bool(sys.flags.interactive) or hasattr(sys, "ps1")


def _first_line(text: str) -> str:
    """Return the line above the job's first cause, in red where `coarse run` writes to a terminal."""
    return f"\033[1;31m{text}\033[0m\n" if os.environ.get("COARSE_COLOR") else f"{text}\n"


def _world_rank() -> int:
    """Return this process's rank in the job, 0 if no launcher started it."""
    if _runtime is not None:
        return _runtime.world_rank
    return int(os.environ.get("PMIX_RANK", "0"))


def _end_together(error: BaseException) -> None:
    """End the job after a start that failed on this rank alone: the others wait for it in MPI."""
    from coarse.runtime import end_job

    if _OTHERS_DEATH in str(error):
        with LauncherLine(os.environ) as line:
            line.say_follows()
        sys.stderr.write(f"coarse: MPI rank {_world_rank()} ends, since another rank died while all started\n")
    else:
        sys.stderr.write(f"coarse: init() failed on MPI rank {_world_rank()}, which ends the job\n")
        traceback.print_exception(error)
    sys.stderr.flush()
    end_job()


def _on_terminate(number: int, _: FrameType | None) -> None:
    runtime = _runtime
    try:
        if runtime is not None:
            lines = runtime.last_words()
            for line in lines:
                sys.stderr.write(f"coarse: MPI rank {runtime.world_rank} ends because {line}\n")
            sys.stderr.flush()
            if lines:
                threading.Event().wait(_LAST_WORDS_S)
    finally:
        os._exit(128 + number)


def _leave_without_mpi() -> None:
    """End here if a rank is gone: MPI_Finalize would wait for it."""
    if _has_failed and not _forked:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
