"""Runs anywhere (pure). Recognise files of PyTorch, without PyTorch."""

import zipfile
from pathlib import Path

__all__ = ["TORCH_FILES", "torch_format"]

TORCH_FILES = (".pt", ".pt2", ".pth", ".ts")

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
    parts = {name.partition("/")[2] or name for name in names}
    if parts & {"archive_format", "serialized_exported_program.json"}:
        if unsafe := sorted(name for name in parts if _is_pickled_object(name)):
            raise ValueError(
                f"the exported program contains pickled objects ({unsafe[0]}), which run code "
                "when they are loaded. Load it in this program and pass the program itself."
            )
        return "torch.export"
    if any(name.startswith("code/") for name in parts):
        return "torch.jit"
    raise ValueError(
        "the file is a pickle (of a module, or of its weights alone), which runs any code when it "
        f"is loaded. {_ADVICE}"
    )


def _is_pickled_object(name: str) -> bool:
    """Return True for a constant of an exported program that is neither a tensor nor the list."""
    folder, _, file = name.rpartition("/")
    return folder.endswith("data/constants") and not file.startswith(("tensor_", "model_"))
