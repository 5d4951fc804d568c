"""Put the pages of docs/ into the wheel, for `mtfc help` and `mtfc explain CODE`; all other metadata is in pyproject.toml."""

from pathlib import Path
from shutil import copy

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithPages(build_py):
    """Build the package with a folder `docs`; an editable installation reads the pages where they are."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib, "mtfc", "docs")
        folder.mkdir(parents=True, exist_ok=True)
        for page in Path("docs").glob("*.md"):
            copy(page, folder)


setup(cmdclass={"build_py": BuildWithPages})
