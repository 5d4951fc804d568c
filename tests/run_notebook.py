"""Run the tutorial notebook in a kernel of Jupyter, for `make notebook`: its cells end as they say, and show rich results."""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "examples" / "tutorial.ipynb"

SHOWN = ["<table>", "<svg", "function", "error[E104]", "<iframe srcdoc=", "hybrid", "optimal"]
"""Texts that the outputs have, in this order."""


def main() -> None:
    """Execute the notebook in a folder of its own, and write it with its outputs. Raises an error of a cell."""
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # the kernel has the packages of this process
    notebook = nbformat.read(TUTORIAL, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
    outputs = "\n".join(
        str(output.get("text") or output.get("traceback") or output.get("data"))
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )
    at = 0
    for text in SHOWN:
        at = outputs.find(text, at)
        assert at >= 0, f"no output shows {text}"
    target = ROOT / "build" / "notebook.ipynb"
    nbformat.write(notebook, target)
    print(f"{len(notebook.cells)} cells ran; {target.relative_to(ROOT)} has their outputs")


if __name__ == "__main__":
    main()
