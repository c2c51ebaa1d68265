"""Make the site's pages that are no file of docs/: first page, examples, reference, and files that pages link to.

mkdocs calls the functions `on_files` and `on_page_markdown`, by `hooks` of mkdocs.yml.
"""

import ast
import re
import sys
from importlib import import_module
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

PUBLIC = ("coarse", "coarse.torch", "coarse.strategy", "coarse.errors", "tf_strategy")
"""Modules of the reference; each documents the names of its `__all__`, or its classes."""
FROM_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGES.md": "changes.md",
    "examples/": "examples.md",
    "examples": "examples.md",
}
"""Paths of the repository that have a page of their own, and the page."""
_LINK = re.compile(r"\]\((?P<path>[^):#\s]+)(?P<anchor>#[^)\s]*)?\)")
_OUTSIDE = re.compile(r"\]\(\.\./(?P<path>[^)#\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here, and every file of the repository that a page links to."""
    texts = {FROM_ROOT[name]: from_root(name) for name in ("README.md", "CONTRIBUTING.md", "CHANGES.md")}
    texts |= {"examples.md": examples(), "reference/commands.md": commands()}
    texts |= {f"reference/{module.replace('.', '_')}.md": reference(module) for module in PUBLIC}
    for uri, text in texts.items():
        files.append(File.generated(config, uri, content=text))
    linked = {path for page in (ROOT / "docs").glob("*.md") for path in _OUTSIDE.findall(page.read_text())}
    for path in sorted({*linked, "LICENSE"} - set(FROM_ROOT)):
        if (ROOT / path).is_file():
            files.append(File.generated(config, _copied(path), content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page of docs/ whose links out of docs/ lead to pages and copies of the site, or are plain names."""
    return _OUTSIDE.sub(lambda link: _within(link["path"]), markdown)


def from_root(name: str) -> str:
    """Return a file of the repository's root, its links as they are for a page of docs/."""

    def led(link: re.Match[str]) -> str:
        path, anchor = link["path"], link["anchor"] or ""
        if path.startswith("docs/"):
            return f"]({path.removeprefix('docs/')}{anchor})"
        return _within(path)

    return _LINK.sub(led, (ROOT / name).read_text())


def examples() -> str:
    """Return one page of all examples: the sentence that each begins with, and its source."""
    about = "Each is a file of `examples/`, of at most 40 lines, and is run by a test with the command that it gives."
    parts = ["# Examples", about]
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix in (".py", ".toml"):
            kind = {".py": "python", ".toml": "toml"}[path.suffix]
            parts += [f"## {path.name}", f"```{kind}\n{path.read_text().rstrip()}\n```"]
    return "\n\n".join(parts)


def reference(module: str) -> str:
    """Return the page of a module: its docstring, then the docstrings of its public names."""
    source = ROOT / Path(*module.split("."))
    tree = ast.parse((source / "__init__.py" if source.is_dir() else source.with_suffix(".py")).read_text())
    head = f"::: {module}\n    options:\n      members: []\n      heading_level: 1"
    return "\n\n".join([head, *(f"::: {module}.{name}" for name in _public_names(tree))])


def commands() -> str:
    """Return the page of the command line: each command's help, and a table of its options."""
    from coarse.cli.app import FIRST_HOUR, HELP_LINES, MODULES

    parts = ["# Commands", f"```text\n{FIRST_HOUR}\n```"]
    for name in HELP_LINES:
        parts += [f"## coarse {name}", *_command(MODULES[name])]
    return "\n\n".join(parts)


def _command(module: str) -> list[str]:
    from typer.main import get_command

    command = get_command(import_module(module).app)
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for parameter in command.params:
        if "--install-completion" in parameter.opts or "--show-completion" in parameter.opts:
            continue
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        default = parameter.default if isinstance(parameter.default, str | int | float) else None
        shown = "" if default in (None, False, "") else f"`{default}`"
        rows.append(f"| {names} | {shown} | {_in_cell(getattr(parameter, 'help', None) or '')} |")
    return [(command.help or "").replace("\b\n", ""), "\n".join(rows)]


def _in_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _public_names(tree: ast.Module) -> list[str]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", None) == "__all__":
            return ast.literal_eval(statement.value)
    return [statement.name for statement in tree.body if isinstance(statement, ast.ClassDef)]


def _within(path: str) -> str:
    if path in FROM_ROOT:
        return f"]({FROM_ROOT[path]})"
    return f"]({_copied(path)})" if (ROOT / path).is_file() else "]"


def _copied(path: str) -> str:
    return f"files/{path}" if Path(path).suffix in (".txt", ".json") else f"files/{path}.txt"
