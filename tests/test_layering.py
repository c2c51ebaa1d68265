"""The rules of the file tree, held by reading the sources: who may import whom, and how big a piece may be."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("coarse", "tf_strategy", "experiments", "benchmarks")

PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
(STRICT,) = (part for part in PYPROJECT["tool"]["mypy"]["overrides"] if part.get("disallow_untyped_defs"))
PURE = frozenset(STRICT["module"])

# fmt: off
ACTING_ROOTS = frozenset({
    "mpi4py", "threading", "_thread", "time", "os", "random", "secrets", "socket", "mmap", "ctypes", "select",
    "selectors", "signal", "subprocess", "multiprocessing", "concurrent", "asyncio", "tempfile", "shutil",
    "faulthandler", "atexit",
})
PICKLING_MPI_CALLS = frozenset({
    "send", "isend", "bsend", "ibsend", "ssend", "issend", "recv", "irecv", "mrecv", "imrecv", "sendrecv",
    "bcast", "gather", "allgather", "scatter", "alltoall", "reduce", "allreduce", "scan", "exscan",
    "probe", "iprobe", "mprobe", "improbe",
})
# fmt: on
PICKLING_ROOTS = frozenset({"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"})
FACE_ROOTS = (
    *("torch", "tensorflow", "keras", "cupy", "rich", "typer", "matplotlib", "safetensors"),
    *("transformers", "peft", "tokenizers"),
)

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60

# From the bottom: a module imports from its own layer and from those below it.
TIERS = ("coarse.client", "coarse.proxy", "coarse.hardware")
LAYERS = (
    ("coarse.protocol",),
    ("coarse.storage",),
    ("coarse.transport",),
    TIERS,
    ("coarse.runtime", "coarse.simulation", "coarse.collectives"),
    ("coarse.session", "coarse.arrays", "coarse.snapshots"),
    ("coarse", "coarse.parallel"),
    ("coarse.torch", "coarse.launch"),
    ("coarse.emulation",),
    ("coarse.cli", "coarse.__main__", "tf_strategy", "experiments", "benchmarks"),
)


def module_name(path: Path) -> str:
    """The dotted name of a source file; a package's __init__ has the package's own."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for package in PACKAGES for path in sorted((REPOSITORY / package).rglob("*.py"))}
TESTS = {module_name(path): path for path in sorted((REPOSITORY / "tests").rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(), str(path)) for name, path in {**SOURCES, **TESTS}.items()}


def imported_names(tree: ast.AST) -> set[str]:
    """Every dotted name that a source imports, wherever the statement stands: `a.b` and `a.b.c` of
    `from a.b import c`, since c may be a module."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_roots(tree: ast.AST) -> set[str]:
    """The top-level packages that a source imports."""
    return {name.partition(".")[0] for name in imported_names(tree)}


def imported_modules(tree: ast.AST) -> set[str]:
    """Those imported names that are sources of this repository, the most precise only."""
    found = {name for name in imported_names(tree) if name in SOURCES}
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def within(name: str, package: str) -> bool:
    """Whether a module is the package or lies in it."""
    return name == package or name.startswith(f"{package}.")


def layer_of(name: str) -> int:
    """The number of a module's layer, 0 for the base files directly in coarse/."""
    for number, packages in enumerate(LAYERS, start=1):
        if any(name == package or (package != "coarse" and within(name, package)) for package in packages):
            return number
    return 0


@pytest.mark.parametrize("name", sorted(PURE))
def test_a_pure_file_imports_only_pure_files_numpy_and_what_does_nothing(name):
    assert name in SOURCES, f"{name} is listed as pure, but there is no such file"
    roots = imported_roots(TREES[name])
    assert not roots & ACTING_ROOTS
    assert roots <= set(sys.stdlib_module_names) | {"numpy", "coarse", "tf_strategy"}
    assert imported_modules(TREES[name]) <= PURE


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_imports_point_one_way(name):
    upward = {other for other in imported_modules(TREES[name]) if layer_of(other) > layer_of(name)}
    assert not upward


@pytest.mark.parametrize("name", sorted(name for name in SOURCES if any(within(name, tier) for tier in TIERS)))
def test_client_proxy_and_hardware_never_import_one_another(name):
    strangers = [tier for tier in TIERS if not within(name, tier)]
    assert not {other for other in imported_modules(TREES[name]) if any(within(other, tier) for tier in strangers)}


@pytest.mark.parametrize("entry", ["coarse", "coarse.runtime"])
def test_the_runtime_needs_numpy_and_mpi4py_alone(entry):
    if entry not in SOURCES:
        pytest.skip(f"{entry} does not exist yet")
    program = f"import sys, mpi4py; mpi4py.rc.initialize = False; import {entry}; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not set(FACE_ROOTS) & set(done.stdout.split())


@pytest.mark.parametrize("name", sorted(name for name in SOURCES if within(name, "coarse")))
def test_nothing_below_coarse_imports_tensorflow_or_keras(name):
    assert not imported_roots(TREES[name]) & {"tensorflow", "keras", "tf_strategy"}


@pytest.mark.parametrize("name", sorted(name for name in SOURCES if within(name, "tf_strategy")))
def test_the_strategy_imports_no_torch_and_what_is_private_in_one_file_for_each_framework_alone(name):
    names = imported_names(TREES[name])
    assert not {other for other in names if within(other, "torch") or within(other, "coarse.torch")}
    for private, alone in (("tensorflow.python", "private_names"), ("keras.src", "private_keras")):
        assert name == f"tf_strategy.{alone}" or not {other for other in names if within(other, private)}


@pytest.mark.parametrize("name", sorted(TREES))
def test_nothing_is_pickled(name):
    calls = [node for node in ast.walk(TREES[name]) if isinstance(node, ast.Call)]
    assert not imported_roots(TREES[name]) & PICKLING_ROOTS
    assert not [ast.unparse(call) for call in calls if ast.unparse(call.func) in ("torch.save", "torch.load")]
    assert not [call for call in calls if any(word.arg == "allow_pickle" for word in call.keywords)]
    assert not [ast.unparse(call) for call in calls if is_pickling_mpi_call(call)]


def is_pickling_mpi_call(call: ast.Call) -> bool:
    """Whether a call is one of mpi4py's lower-case ones, as far as the receiver's name tells."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in PICKLING_MPI_CALLS:
        return False
    receiver = ast.unparse(call.func.value).rpartition(".")[2]
    return re.search(r"comm(unicator)?(_world|_self)?$", receiver.lower()) is not None


def test_pickling_mpi_calls_are_told_from_others():
    pickling = ("comm.send(x)", "self._comm.bcast(x)", "MPI.COMM_WORLD.allreduce(1)", "intercomm.recv()")
    others = ("comm.Send(x)", "socket.send(x)", "comm.Get_rank()", "generator.send(x)", "np.add.reduce(x)")
    for source in pickling + others:
        call = ast.parse(source, mode="eval").body
        assert isinstance(call, ast.Call)
        assert is_pickling_mpi_call(call) is (source in pickling)


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_files_and_functions_stay_small(name):
    num_file_lines = len(SOURCES[name].read_text().splitlines())
    assert num_file_lines <= MAX_FILE_LINES
    assert not [f"{function.name} has {num_lines(function)} lines" for function in functions_of(TREES[name])
                if num_lines(function) > MAX_FUNCTION_LINES]  # fmt: skip


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_every_function_is_annotated(name):
    assert not [function.name for function in functions_of(TREES[name]) if not is_annotated(function)]


def functions_of(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a source, nested ones too."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def num_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the last, docstring included."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def is_annotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the result and every argument but self and cls have an annotation."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    named = [argument for argument in arguments if argument is not None and argument.arg not in ("self", "cls")]
    return function.returns is not None and all(argument.annotation is not None for argument in named)


def test_no_file_is_a_drawer():
    drawers = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not {name for name in TREES if drawers & set(name.split("."))}


def test_no_import_is_relative():
    assert not {
        name for name, tree in TREES.items()
        for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level
    }  # fmt: skip
