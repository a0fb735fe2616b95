"""What must hold of the file that runs in the target Python, by its text."""

from __future__ import annotations

import ast
import sys
import tokenize

import pytest

from ddpdoctor.probes.target_python.asking import INQUIRY

TREE = ast.parse(INQUIRY.read_text(), feature_version=(3, 8))


@pytest.mark.quick
def test_imports_only_the_standard_library() -> None:
    names = {
        name.partition(".")[0]
        for node in ast.walk(TREE)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "."]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names - set(sys.stdlib_module_names) == {"torch"}, "torch is what mode torch is there to import"


@pytest.mark.quick
def test_torch_is_imported_in_functions_only() -> None:
    at_module_level = [node for node in TREE.body if isinstance(node, ast.Import)]
    assert not [node for node in at_module_level if any("torch" in alias.name for alias in node.names)]


def test_version_gate_stands_above_all_but_sys() -> None:
    statements = TREE.body[1:]  # After the docstring.
    gate = next(index for index, node in enumerate(statements) if isinstance(node, ast.If))
    assert "version_info" in ast.dump(statements[gate].test)  # type: ignore[attr-defined]
    imported = [node for node in statements[:gate] if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert [ast.unparse(node) for node in imported] == ["import sys"]


def test_python_2_could_parse_it() -> None:
    """Python 2.7 parses the whole file before the gate can speak; what a formatter may bring in must not be there."""
    INQUIRY.read_bytes().decode("ascii")
    for node in ast.walk(TREE):
        assert not isinstance(node, (ast.JoinedStr, ast.NamedExpr, ast.AnnAssign, ast.Nonlocal, ast.AsyncFunctionDef))
        if isinstance(node, ast.FunctionDef):
            assert node.returns is None
            assert not node.args.kwonlyargs
            assert not node.args.posonlyargs
            assert not any(argument.annotation for argument in node.args.args)
        if isinstance(node, ast.Call):
            assert not (node.keywords and any(isinstance(argument, ast.Starred) for argument in node.args))
            many = [index for index, one in enumerate(node.keywords) if one.arg is None]
            assert not many or (len(node.args) == 0 and many == [len(node.keywords) - 1]), ast.unparse(node)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)) and isinstance(getattr(node, "ctx", None), ast.Load):
            assert not any(isinstance(elt, ast.Starred) for elt in node.elts)
        if isinstance(node, ast.Dict):
            assert None not in node.keys
        if isinstance(node, ast.Raise):
            assert node.cause is None
    for token in tokenize.generate_tokens(iter(INQUIRY.read_text().splitlines(True)).__next__):
        if token.type == tokenize.NUMBER:
            assert "_" not in token.string
    assert not _calls_with_comma_after_stars()


def _calls_with_comma_after_stars() -> list[int]:
    """Lines of calls such as `f(\n    **x,\n)`, which a formatter makes."""
    text = INQUIRY.read_text()
    found = []
    for node in ast.walk(TREE):
        if isinstance(node, ast.Call) and node.keywords and node.keywords[-1].arg is None:
            source = ast.get_source_segment(text, node) or ""
            if source.rstrip(")").rstrip().endswith(","):
                found.append(node.lineno)
    return found
