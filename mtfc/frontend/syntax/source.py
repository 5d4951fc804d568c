"""Bytes to text."""

from __future__ import annotations

import re

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Span


def decode(data: bytes, file: str) -> str:
    """The text of a file, without a byte order mark; raises CompileError (E013) when it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8-sig", errors="ignore")
        lines = re.split(r"\r\n|\r|\n", good)
        span = Span(file, len(lines), len(lines[-1]) + 1, len(lines), len(lines[-1]) + 2)
        message = f"this file is not UTF-8 text: it has the byte 0x{data[error.start]:02x} here"
        raise CompileError((Diagnostic("E013", message, span),)) from None
