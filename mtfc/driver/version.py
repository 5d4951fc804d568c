"""The version of the installed mtfc, read when it is asked for: reading it takes time."""


def installed_version() -> str | None:
    """Return the version, or None if mtfc runs from a folder without being installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mtfc")
    except PackageNotFoundError:
        return None
