"""What a source file imports, as its syntax tree has it: a docstring's words are no imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def import_statements(source: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import in ``source``, those inside functions included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)


def imports_of(source: str) -> Iterator[tuple[int, str]]:
    """The same, and those by string."""
    yield from import_statements(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = (
                node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            )
            if function in ("import_module", "__import__"):
                yield node.lineno, str(node.args[0].value)


def imported_packages(source: str) -> set[str]:
    """The first part of every name that a statement imports."""
    return {name.split(".")[0] for _, name in import_statements(source)}
