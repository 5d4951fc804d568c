"""Text from a model that writes tokens: prompts as its inputs, and its output as text.

Such a model has the inputs `prompt: i32[texts, length]` and `given: i32[texts]`, the number of tokens of each prompt, and often
`temperature: []` and `seed: i32[]`. Its first output, i32[texts, length], holds the prompts and their continuations. Tokens are
the bytes of UTF-8, where token 0 ends a text, or those of a tokenizer, where each special token does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import FLOATS, TensorType
from mtfc.driver.data.array_files import Array
from mtfc.driver.data.inputs import Batches, as_type, input_types, shape_text
from mtfc.driver.data.tokenizers import Tokenizer
from mtfc.driver.errors import UsageError

INPUTS = "prompt: i32[texts, length], given: i32[texts], and optionally temperature: f32[], seed: i32[]"


@attrs.frozen
class Generation:
    """Prompts to continue.

    temperature: 0 takes the most probable token, 1 draws as the model says. tokens: the most new tokens of a text, or None.
    tokenizer: the file of a tokenizer; None for models of bytes.
    """

    prompts: Sequence[str]
    temperature: float = 0.8
    tokens: int | None = None
    tokenizer: str | None = None

    def batch(self, program: Program, seed: int) -> Batches:
        """Return the inputs of a model; rows without a prompt of their own repeat the prompts. Raises `UsageError`."""
        import numpy as np

        types, encoding = _checked(program), self._encoding()
        texts, length = types["prompt"].dims
        if len(self.prompts) > texts.size:
            raise UsageError(
                f"{len(self.prompts)} prompts, and model {program.name} writes {texts.size} at a time: give fewer, or try"
                f" --dim {texts.name}={len(self.prompts)}"
            )
        encoded = [encoding.encode(prompt) for prompt in self.prompts]
        most = max(encoded, key=len)
        if len(most) >= length.size:
            raise UsageError(
                f"the prompt has {len(most)} {encoding.unit}s, and a text of the model has {length.name} = {length.size} with"
                f" what is new: give a shorter prompt, or try --dim {length.name}=N"
            )
        rows = [encoded[row % len(encoded)] for row in range(texts.size)]
        values = {
            "prompt": np.array([[*row, *[0] * (length.size - len(row))] for row in rows]),
            "given": np.array([len(row) for row in rows]),
            "temperature": np.array(self.temperature),
            "seed": np.array(seed, np.uint32),
        }
        return Batches(types, {name: as_type(values[name], type) for name, type in types.items()}, 1)

    def texts(self, outputs: Mapping[str, Array], program: Program) -> list[str]:
        """Return the text that continues each prompt, the prompt included. Raises `UsageError`."""
        tokens = outputs[program.function("forward").outputs[0].name]
        encoding = self._encoding()
        return [
            self._decoded(row.tolist(), len(encoding.encode(prompt)), encoding)
            for row, prompt in zip(tokens, self.prompts, strict=False)
        ]

    def _encoding(self) -> Encoding:
        """Return the encoding of texts: bytes, or that of the tokenizer."""
        return Bytes() if self.tokenizer is None else Tokenizer.open(self.tokenizer)

    def _decoded(self, tokens: Sequence[int], given: int, encoding: Encoding) -> str:
        """Return a text up to the first new token that ends it."""
        new = tokens[given:] if self.tokens is None else tokens[given : given + self.tokens]
        end = next((i for i, token in enumerate(new) if encoding.ends(token)), len(new))
        return encoding.decode([*tokens[:given], *new[:end]])


class Bytes:
    """The bytes of UTF-8, with the interface of a `Tokenizer`."""

    unit = "byte"

    def encode(self, text: str) -> Sequence[int]:
        """Return the tokens of a text. Raises `UsageError`."""
        encoded = text.encode("utf-8", "surrogateescape")
        if 0 in encoded:
            raise UsageError("the prompt has a byte 0, which ends a text: leave it out")
        return encoded

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. Raises `UsageError`."""
        if max(tokens, default=0) > 255:
            raise UsageError(
                f"the model writes token {max(tokens)}, which is no byte: --tokenizer names the file with its tokens, and"
                " --data and --save take any tokens"
            )
        return bytes(tokens).decode("utf-8", "replace")

    def ends(self, token: int) -> bool:
        """Return True if a token ends a text."""
        return token == 0


Encoding = Bytes | Tokenizer
"""Text as tokens. unit: the word for a token."""


def _checked(program: Program) -> dict[str, TensorType]:
    """Return the types of a model's inputs. Raises `UsageError` unless it takes prompts and writes tokens."""
    forward = program.function("forward")
    types = input_types(forward)
    if not _takes_prompts(types):
        found = ", ".join(f"{name}: {shape_text(type)}" for name, type in types.items()) or "none"
        raise UsageError(
            f"--prompt goes with a model that has the inputs {INPUTS}; the inputs of model {program.name} are {found}:"
            " choose another with --model"
        )
    written = forward.outputs[0].value.type.unsplit()
    if written != types["prompt"]:
        raise UsageError(
            f"--prompt goes with a model whose first output is {shape_text(types['prompt'])}, and that of model"
            f" {program.name} is {shape_text(written)}: choose another with --model"
        )
    return types


def _takes_prompts(types: Mapping[str, TensorType]) -> bool:
    """Return True if inputs have the names and types of `INPUTS`."""
    if not {"prompt", "given"} <= types.keys() <= {"prompt", "given", "temperature", "seed"}:
        return False
    prompt, given = types["prompt"], types["given"]
    scalars = [type for name, type in types.items() if name in ("temperature", "seed")]
    return (
        len(prompt.dims) == 2
        and prompt.dtype == given.dtype == "i32"
        and given.dims == prompt.dims[:1]
        and not any(type.dims for type in scalars)
        and ("temperature" not in types or types["temperature"].dtype in FLOATS)
        and ("seed" not in types or types["seed"].dtype in ("i32", "u32"))
    )
