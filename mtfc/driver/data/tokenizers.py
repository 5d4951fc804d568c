"""Tokenizers in the JSON files of the package `tokenizers`, as most published models have: text to tokens, and back."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import attrs

from mtfc.driver.data.array_files import Array
from mtfc.driver.data.packages import import_package
from mtfc.driver.errors import UsageError, reason_of


@attrs.frozen(eq=False)
class Tokenizer:
    """A tokenizer of a file. fingerprint: a hash of the file. special: the tokens that stand for no text, such as the end."""

    path: str
    fingerprint: str
    package: Any
    special: frozenset[int]
    unit: ClassVar[str] = "token"

    @classmethod
    def open(cls, path: str) -> Tokenizer:
        """Read a file. Raises `UsageError`, and `Unavailable` without the package."""
        package = import_package("tokenizers", "tokenizers", "--tokenizer", "data")
        try:
            content = Path(path).read_bytes()
            found = package.Tokenizer.from_buffer(content)
        except OSError as error:
            raise UsageError(f"--tokenizer {path}: {reason_of(error)}") from None
        except Exception as error:  # the package raises `Exception` and `ValueError`
            reason = str(error).partition("\n")[0]
            raise UsageError(
                f"--tokenizer {path}: expected a tokenizer.json of the package tokenizers ({reason})"
            ) from None
        added = found.get_added_tokens_decoder()
        special = frozenset(number for number, token in added.items() if token.special)
        return cls(path, sha256(content).hexdigest()[:16], found, special)

    @property
    def size(self) -> int:
        """One more than the largest token."""
        return max(self.package.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> Array:
        """Return the tokens of a text, with the special tokens that the file adds to each text."""
        import numpy as np

        valid = text.encode(
            "utf-8", "replace"
        ).decode()  # JSON and command lines may hold half of a character
        return np.array(self.package.encode(valid).ids, np.int64)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; special tokens have none."""
        return str(self.package.decode([token for token in tokens if 0 <= token < self.size]))

    def ends(self, token: int) -> bool:
        """Return True if a token ends a text."""
        return token in self.special
