"""Check one property on one file: `python -m tests.properties.again PROPERTY FILE`."""

import sys
from pathlib import Path

from tests.fuzz.test_campaign import properties
from tests.properties.failures import Source


def main(name: str, file: str) -> None:
    found = next((each for each in properties() if each.__name__ == name), None)
    if found is None:
        raise SystemExit(f"no property is called {name}")
    found.check(Source(Path(file).read_text("utf-8")))
    print(f"{name} holds for {file}")


if __name__ == "__main__":
    main(*sys.argv[1:])
