"""Runs anywhere (pure). Recognise files of PyTorch, without PyTorch."""

import ast
import json
import re
import zipfile
from pathlib import Path
from typing import Any

TORCH_FILES = (".pt", ".pt2", ".pth", ".ts")

_PARTS_OF_SIZES = (
    *(ast.Expression, ast.Name, ast.Load, ast.keyword),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_RUNS_TEXT = ("Lambda", "Function", "WildFunction", "Dummy")

_ADVICE = (
    "Load it in this program and pass the module itself; or save a program: "
    "torch.export.save(torch.export.export(module, example), 'm.pt2'), or "
    "torch.jit.script(module).save('m.pt')."
)


def torch_format(path: Path) -> str:
    """Return the format of a file: `torch.jit` (TorchScript) or `torch.export`.

    The formats are told apart by the names in the archive: TorchScript has its code in `code/`
    (`torch/csrc/jit/serialization/export_module.cpp`), an exported program has `archive_format`
    (`torch/export/pt2_archive/constants.py`) or, before PyTorch 2.8,
    `serialized_exported_program.json`.

    Raises:
        ValueError: if the file is a pickle, which runs any code when it is loaded, or no file of
            PyTorch.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError(f"the file is not an archive of PyTorch. {_ADVICE}")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        expressions = [e for name in names if name.endswith(".json") for e in _read(archive, name)]
    parts = {name.partition("/")[2] or name for name in names}
    if parts & {"archive_format", "serialized_exported_program.json"}:
        if unsafe := sorted(name for name in parts if _is_pickled_object(name)):
            raise ValueError(
                f"the exported program contains pickled objects ({unsafe[0]}), which run code "
                "when they are loaded. Load it in this program and pass the program itself."
            )
        if unsafe := [text for text in expressions if not _is_size(text)]:
            raise ValueError(
                f"the exported program has the size {unsafe[0][:100]!r}, which PyTorch would run "
                "as code. Export the program again."
            )
        return "torch.export"
    if any(name.startswith("code/") for name in parts):
        return "torch.jit"
    raise ValueError(
        "the file is a pickle (of a module, or of its weights alone), which runs any code when it "
        f"is loaded. {_ADVICE}"
    )


def _is_pickled_object(name: str) -> bool:
    """Return True for a constant of an exported program that is neither a tensor nor the list.

    PyTorch unpickles by the beginning of a name below the folder, whatever the rest of the name is.
    """
    _, folder, file = f"/{name}".partition("/data/constants/")
    return bool(folder) and not re.fullmatch(r"tensor_\d+|\w+_config\.json", file)


def _read(archive: zipfile.ZipFile, name: str) -> list[str]:
    """Return the expressions of sizes in a file of an exported program."""
    found: list[str] = []

    def note(pairs: dict[str, Any]) -> dict[str, Any]:
        found.extend(str(value) for key, value in pairs.items() if key == "expr_str")
        return pairs

    json.loads(archive.read(name), object_hook=note)
    return found


def _is_size(text: str) -> bool:
    """Return True for an expression of sizes, such as `s0 + 2` or `FloorDiv(Symbol('s0'), 2)`.

    PyTorch gives it to `sympy.sympify`, which runs it.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return False
    return all(_is_part_of_size(node) for node in ast.walk(tree))


def _is_part_of_size(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        # The functions of PyTorch's sizes and sympy's own begin with a capital; `S` runs a text.
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        return bool(re.fullmatch(r"[A-Z][A-Za-z]+", name)) and name not in _RUNS_TEXT
    if isinstance(node, ast.Constant):
        is_name = isinstance(node.value, str) and bool(re.fullmatch(r"\w{1,64}", node.value))
        return is_name or isinstance(node.value, bool | int | float)
    return isinstance(node, _PARTS_OF_SIZES)
