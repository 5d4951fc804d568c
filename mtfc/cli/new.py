"""`mtfc new`: start a project: a model, data and a test.

examples:
  mtfc new spirals                   make a folder `spirals` with a model, data and a test
"""

import shlex
import shutil
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

from mtfc.cli.options import Options
from mtfc.driver.errors import UsageError, reason_of

STARTER = Path(__file__).parents[1] / "starter"

OPTIONS = "  DIR  the new folder"


def run(options: Options) -> None:
    """Write the files of a new project, and say how to start."""
    files = _new_project(options.folder)
    model = PurePath(options.folder, "model.mtf")
    shown = f"./{model}" if str(model).startswith("-") else str(model)
    print(
        f"{options.folder}: {', '.join(files)}",
        f"Start with `mtfc check {shlex.quote(shown)}`; README.md has the rest.",
        sep="\n",
    )


def _new_project(folder: str) -> list[str]:
    """Make a folder with the files of a project, all or none, and return their names. Raises `UsageError`."""
    if not folder:
        raise UsageError("`mtfc new` takes the name of a new folder, and this name is empty")
    target = Path(folder).absolute()
    try:
        if target.is_symlink() or (target.exists() and not _is_empty_folder(target)):
            raise UsageError(f"{folder} exists: `mtfc new` takes the name of a new folder, or an empty one")
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=".mtfc-new-") as temporary:
            made = Path(temporary, "project")
            made.mkdir()
            for file in _files():
                shutil.copyfile(file, made / file.name)
            if target.exists():  # it may be the current folder, which must stay the same folder
                for file in made.iterdir():
                    file.replace(target / file.name)
            else:
                made.replace(target)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {folder}: {reason_of(error)}") from error
    return [file.name for file in _files()]


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _files() -> list[Path]:
    return sorted(file for file in STARTER.iterdir() if file.is_file())
