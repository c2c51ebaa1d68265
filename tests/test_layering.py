"""The rules of the sources that import-linter and ruff do not hold: what is pure, and how big a piece is.

A file is pure where it lies in coarse/protocol/ or its first line says so. A file of coarse/protocol/ that is not says
in its first line what it does: reads the clock, files.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from importlib.util import find_spec

from tests.support.sources import REPOSITORY, Parts, imported_names, module_of, parts_of

PACKAGES = ("coarse", "tf_strategy", "experiments", "benchmarks")
PURE_LINE = "# Pure: no MPI, threads, clock or environment."
PURE_ROOM = REPOSITORY / "coarse" / "protocol"

# fmt: off
ACTING_ROOTS = frozenset({
    "mpi4py", "threading", "_thread", "time", "os", "random", "secrets", "socket", "mmap", "ctypes", "select",
    "selectors", "signal", "subprocess", "multiprocessing", "concurrent", "asyncio", "tempfile", "shutil",
    "faulthandler", "atexit",
})
FILE_CALLS = frozenset({
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink", "iterdir", "glob", "rglob",
    "exists", "is_file", "is_dir",
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
KERNEL = (
    *("client", "collectives", "launch", "protocol", "proxy", "storage", "strategy", "transport"),
    *("arrays.py", "errors.py", "runtime.py", "session.py"),
)
"""What every job runs, without GPUs, frameworks, features, emulation and simulation."""
MAX_KERNEL_LINES = 15_500
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
MAX_FUNCTION_LINES = 60


PATHS = {
    module_of(path.relative_to(REPOSITORY)): path
    for package in PACKAGES
    for path in sorted((REPOSITORY / package).rglob("*.py"))
}
TEXTS = {name: path.read_text() for name, path in PATHS.items()}
TEST_PATHS = {
    module_of(path.relative_to(REPOSITORY)): path for path in sorted((REPOSITORY / "tests").rglob("*.py"))
}


def first_line(name: str) -> str:
    """Of a source file."""
    return TEXTS[name].partition("\n")[0]


def is_pure(name: str) -> bool:
    """Whether a source says that it is, or lies where all are that do not say what they do."""
    line = first_line(name)
    return line.startswith(PURE_LINE) or (PURE_ROOM in PATHS[name].parents and not line.startswith("#"))


PURE = {name for name in PATHS if is_pure(name)}


def imported_roots(parts: Parts) -> set[str]:
    """The top-level packages that a source imports."""
    return {other.partition(".")[0] for other in imported_names(parts)}


def imported_modules(parts: Parts) -> set[str]:
    """Those imported names that are sources of this repository, the most precise only."""
    found = {other for other in imported_names(parts) if other in PATHS}
    return {one for one in found if not any(other.startswith(f"{one}.") for other in found)}


def called_names(parts: Parts) -> set[str]:
    """The last part of every name that a source calls."""
    functions = [call.func for call in parts.calls]
    attributes = {function.attr for function in functions if isinstance(function, ast.Attribute)}
    return attributes | {function.id for function in functions if isinstance(function, ast.Name)}


def test_a_pure_file_imports_nothing_that_acts():
    allowed = set(sys.stdlib_module_names) - ACTING_ROOTS | {"numpy", "typing_extensions", *PACKAGES}  # of types alone
    roots = {name: imported_roots(parts_of(PATHS[name])) - allowed for name in PURE}
    assert not {name: found for name, found in roots.items() if found}
    assert len(PURE) > 100


def test_a_pure_file_imports_only_pure_files_and_those_that_read_files():
    reading = {name for name in PATHS if first_line(name).startswith("# Reads files.")}
    ours = {name: imported_modules(parts_of(PATHS[name])) - PURE - reading - {"coarse.errors"} for name in PURE}
    assert not {name: found for name, found in ours.items() if found}


def test_a_pure_file_that_reads_or_writes_files_says_so_in_its_first_line():
    assert not {
        name: found
        for name in PURE
        if (found := called_names(parts_of(PATHS[name])) & FILE_CALLS) and "files" not in first_line(name)
    }


def test_the_runtime_needs_numpy_and_mpi4py_alone():
    for entry in ("coarse", "coarse.runtime"):
        program = f"import sys, mpi4py; mpi4py.rc.initialize = False; import {entry}; print(*sys.modules)"
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert not set(FACE_ROOTS) & set(done.stdout.split()), entry


def test_what_a_framework_has_private_stands_in_one_file_for_each():
    imports = {name: imported_names(parts_of(path)) for name, path in PATHS.items()}
    for private, alone in (("tensorflow.python", "private_names"), ("keras.src", "private_keras")):
        using = {name for name, others in imports.items() for other in others if f"{other}.".startswith(f"{private}.")}
        assert using == {f"tf_strategy.{alone}"}


def test_nothing_is_pickled():
    guilty = {}
    for name, path in {**PATHS, **TEST_PATHS}.items():
        parts = parts_of(path)
        found = [ast.unparse(call) for call in parts.calls if is_pickling(call)]
        guilty[name] = [*found, *(imported_roots(parts) & PICKLING_ROOTS)]
    assert not {name: found for name, found in guilty.items() if found}


def is_pickling(call: ast.Call) -> bool:
    """Whether a call pickles: torch's files, numpy's if asked to, mpi4py's lower-case calls as far as names tell."""
    if any(word.arg == "allow_pickle" for word in call.keywords):
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr in ("save", "load") and ast.unparse(call.func.value) == "torch":
        return True
    if call.func.attr not in PICKLING_MPI_CALLS:
        return False
    receiver = ast.unparse(call.func.value).rpartition(".")[2]
    return re.search(r"comm(unicator)?(_world|_self)?$", receiver.lower()) is not None


def test_pickling_calls_are_told_from_others():
    pickling = ("comm.send(x)", "self._comm.bcast(x)", "MPI.COMM_WORLD.allreduce(1)", "torch.save(x, path)")
    others = ("comm.Send(x)", "socket.send(x)", "comm.Get_rank()", "generator.send(x)", "np.add.reduce(x)")
    for source in pickling + others:
        call = ast.parse(source, mode="eval").body
        assert isinstance(call, ast.Call)
        assert is_pickling(call) is (source in pickling)


def test_files_and_functions_stay_small():
    long = [name for name, text in TEXTS.items() if len(text.splitlines()) > MAX_FILE_LINES]
    assert not long
    assert not [
        f"{name}.{function.name} has {num_lines(function)} lines"
        for name, path in PATHS.items()
        for function in parts_of(path).functions
        if num_lines(function) > MAX_FUNCTION_LINES
    ]


def test_the_kernel_stays_small():
    """Lines of code: neither blank nor comment nor docstring."""
    roots = [REPOSITORY / "coarse" / name for name in KERNEL]
    files = [path for root in roots for path in ([root] if root.suffix else root.rglob("*.py"))]
    assert 13_000 < sum(num_code_lines(path.read_text()) for path in files) <= MAX_KERNEL_LINES


def test_every_function_is_annotated():
    assert not [
        f"{name}.{function.name}"
        for name, path in PATHS.items()
        for function in parts_of(path).functions
        if not is_annotated(function)
    ]


def num_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines from `def` to the last, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None:
        return lines
    return lines - ((first.end_lineno or first.lineno) - first.lineno + 1)


def num_code_lines(source: str) -> int:
    """Return the number of lines that hold a token which is neither comment nor docstring."""
    parents = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS))]
    texts = [node for parent in parents for node in parent.body if isinstance(node, ast.Expr)]
    described = {
        line
        for text in texts
        if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - described)


def test_lines_of_code_are_counted():
    source = '"""Text."""\n\nx = 1  # comment\n# comment\ny = (\n    2,\n)\n'
    source += 'def f():\n    """Text,\n    more."""\n    return 3\n'
    assert num_code_lines(source) == 6


def is_annotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the result and every argument but self and cls have an annotation."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    named = [argument for argument in arguments if argument is not None and argument.arg not in ("self", "cls")]
    return function.returns is not None and all(argument.annotation is not None for argument in named)


def test_no_file_is_a_drawer():
    drawers = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not {name for name in (*PATHS, *TEST_PATHS) if drawers & set(name.split("."))}


def test_no_file_of_an_mpi_room_is_named_like_a_package():
    """A program's folder may lead its sys.path, and would hide the package."""
    rooms = [REPOSITORY / "tests" / "support", *(REPOSITORY / "tests" / "mpi").rglob("*")]
    names = {path.stem for room in rooms if room.is_dir() for path in room.glob("*.py")}
    assert len(names) > 80
    assert not {name for name in names if find_spec(name) is not None}


def test_coarse_has_fifteen_packages_six_features_and_seven_files():
    children = [path for path in (REPOSITORY / "coarse").iterdir() if path.name != "__pycache__"]
    files = {path.name for path in children if path.suffix == ".py"}
    assert files == {
        *("__init__.py", "__main__.py", "arrays.py", "autoload.py", "errors.py", "generators.py"),
        *("plain.py", "runtime.py", "session.py"),
    }
    assert {path.name for path in children if path.is_dir()} == {
        *("protocol", "storage", "transport", "client", "proxy", "hardware", "collectives"),
        *("simulation", "parallel", "torch", "launch", "emulation", "cli", "strategy", "gpu"),
        *("faults", "horovod", "luwu", "odc", "pool", "snapshots"),
    }
