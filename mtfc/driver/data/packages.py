"""The packages of the extras `mtfc[train]`, `mtfc[data]` and `mtfc[remote]`, which are imported when they are needed."""

from importlib import import_module
from typing import Any

from mtfc.backends.common.devices import Unavailable, installing


def import_package(module: str, package: str, work: str = "training", extra: str = "train") -> Any:
    """Return a module of a package. Raises `Unavailable` if the package is not installed.

    work: the subject of the message. extra: the extra that installs the package.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise Unavailable(
            f"{work} needs the package {package}, which cannot be imported ({error}): {installing(extra)}"
        ) from error
