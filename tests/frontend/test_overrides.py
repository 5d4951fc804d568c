"""`--set`: entries of a `train` block from the command line mean the same as in the file."""

import pytest

from mtfc.compiler.diagnostics import Diagnostic, Diagnostics
from mtfc.compiler.ir.core import Training
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.ir.types import TensorType
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.syntax.parser import parse

FILE = "file.mtf"
MODEL = """
dim io = 6
dim batch = 4
model other(x: [batch, io]) {
  param w: [io] = zeros()
  loss = mean(square(x * w))
  return loss
}
model net(x: [batch, io]) {
  param w: [io] = zeros()
  loss = mean(square(x * w))
  loss2 = mean(abs(x * w))
  return loss, loss2
}
train other {
  minimize loss
  optimizer = sgd(0.5)
}
"""


def source(*entries: str) -> str:
    return f"{MODEL}train net {{\n{''.join(f'  {each}{chr(10)}' for each in entries)}}}\n"


def elaborated(text: str, *settings: str, model: str = "net") -> tuple[str, list[Diagnostic]]:
    """Return the program as IR text without places, and the diagnostics."""
    diagnostics = Diagnostics()
    module = elaborate(parse(text, FILE, diagnostics), diagnostics, model=model, settings=settings)
    (program,) = module.programs
    ir = print_program(program)
    return "\n".join(line.split("  //")[0] for line in ir.splitlines()), list(diagnostics)


SGD = ("minimize loss", "optimizer = sgd(0.1)")


@pytest.mark.parametrize(
    ("settings", "entries"),
    [
        (["accumulate=4"], (*SGD, "accumulate = 4")),
        (["clip = 1.0"], (*SGD, "clip = 1.0")),
        (["report=loss2, grad_norm"], (*SGD, "report loss2, grad_norm")),
        (["clip=1.0", "clip=2.0"], (*SGD, "clip = 2.0")),
        (["precision.compute=bf16"], (*SGD, "precision = { compute: bf16 }")),
        (["precision={ params: bf16 }", "precision.compute=f16"], (*SGD, "precision = { params: bf16, compute: f16 }")),
        (["minimize=loss2"], ("minimize loss2", SGD[1])),
        (["optimizer.learning_rate=1e-3"], (SGD[0], "optimizer = sgd(learning_rate = 1e-3)")),
        ([" optimizer.learning_rate = 0.1 * 0.99 ** step"], (SGD[0], "optimizer = sgd(learning_rate = 0.1 * 0.99 ** step)")),
        (["optimizer=adam(1e-3, beta1 = 0.5)", "optimizer.beta1=0.8", "accumulate=2"],
         (SGD[0], "optimizer = adam(learning_rate = 1e-3, beta1 = 0.8)", "accumulate = 2")),
    ],
)  # fmt: skip
def test_an_option_is_an_entry_of_the_block(settings: list[str], entries: tuple[str, ...]) -> None:
    by_option, errors = elaborated(source(*SGD), *settings)
    assert not errors
    assert by_option == elaborated(source(*entries))[0]
    assert by_option != elaborated(source(*SGD))[0]


def test_entries_that_the_file_lacks_can_be_given() -> None:
    assert elaborated(source("optimizer = sgd(0.1)"), "minimize=loss")[1] == []
    assert elaborated(source("minimize loss"), "optimizer=sgd(0.1)")[1] == []
    missing = elaborated(source("minimize loss"), "optimizer.learning_rate=0.1")[1]
    assert [each.code for each in missing] == ["E409"]


def test_the_chosen_model_is_changed_alone() -> None:
    changed, _ = elaborated(source(*SGD), "accumulate=4", model="other")
    assert changed != elaborated(source(*SGD), model="other")[0]
    first = Diagnostics()
    module = elaborate(parse(source(*SGD), FILE, first), first, settings=["accumulate=4"])
    trainings = [program.training for program in module.programs]
    assert [each.accumulate for each in trainings if isinstance(each, Training)] == [4, 1]


@pytest.mark.parametrize(
    ("setting", "code", "columns", "help"),
    [
        ("acumulate=4", "E012", (1, 10), "did you mean `accumulate`?"),
        ("optimiser.beta1=4", "E012", (1, 16), "did you mean `optimizer.beta1`?"),
        ("optimizer.a.b=4", "E012", (1, 14), "the keys are minimize, optimizer, precision"),
        ("optimizer.learningrate=1", "E405", (11, 23), "did you mean `learning_rate`?"),
        ("optimizer.learning_rate=[io]", "E001", (25, 26), None),
        ("optimizer.learning_rate=x", "E101", (25, 26), None),
        ("optimizer.learning_rate=0.1 +", "E001", (30, 31), None),
        ("optimizer=adm(0.1)", "E404", (11, 14), "did you mean `adam`?"),
        ("optimizer=adam(", "E002", (15, 16), None),
        ("accumulate=0", "E410", (12, 13), None),
        ("accumulate=4; clip=1", "E410", (1, 21), None),
        ('accumulate=4; frozen "w"', "E410", (1, 25), None),
        ("clip=1 } train other {", "E001", (10, 15), None),
        ("clip=", "E001", (6, 7), None),
        ("precision.compute=4", "E410", (19, 20), None),
        ("precision.compte=f16", "E410", (11, 17), "did you mean `compute`?"),
        ("precision.compute=f61", "E211", (19, 22), "did you mean `f64`?"),
        ("minimize=los", "E401", (10, 13), "did you mean `loss`?"),
        ("report=loss2, los", "E401", (15, 18), "did you mean `loss`?"),
        ('frozen="w"', "E012", (1, 7), "the keys are minimize"),
        ('optimizer for "w"=sgd(0.1)', "E012", (1, 18), "the keys are minimize"),
    ],
)
def test_errors_point_into_the_option(
    setting: str, code: str, columns: tuple[int, int], help: str | None
) -> None:
    """The wrong option is the second, so its error is in line 2."""
    _, found = elaborated(source(*SGD), "clip=1.0", setting)
    assert [each.code for each in found] == [code]
    (error,) = found
    span = error.span
    assert (span.file, span.line, span.end_line) == ("<--set>", 2, 2)
    assert (span.column, span.end_column) == columns
    assert help is None or (error.help or "").startswith(help)


GROUPED = ("minimize loss", 'optimizer for "*" = sgd(0.1)')


@pytest.mark.parametrize(
    ("entries", "setting", "code"),
    [
        (GROUPED, "optimizer.learning_rate=5", "E417"),
        (GROUPED, "optimizer.nope=5", "E417"),
        (GROUPED, "optimizer=adam(0.5)", "E417"),
        ((*GROUPED, "optimizer = adam(0.1)"), "optimizer.learning_rate=5", "E417"),
        ((*GROUPED, "optimizer = adam(0.1)"), "optimizer=adam(0.5)", "E417"),
        ((*GROUPED, "optimizer = adam(0.1)"), "optimizer.nope=5", "E405"),
    ],
)
def test_an_optimizer_that_updates_no_parameter_is_not_changed_in_silence(
    entries: tuple[str, ...], setting: str, code: str
) -> None:
    (error,) = elaborated(source(*entries), setting)[1]
    assert (error.code, error.span.file) == (code, "<--set>")
    shown = ["this group has an optimizer of its own"] if code == "E417" else []
    assert [label.message for label in error.labels] == shown


def test_the_hyperparameters_of_an_optimizer_that_updates_no_parameter_are_checked() -> None:
    assert [each.code for each in elaborated(source(*GROUPED, "optimizer = adam(0.1, nope = 5)"))[1]] == [
        "E405"
    ]


def test_a_model_that_is_not_trained_has_nothing_to_change() -> None:
    _, found = elaborated(MODEL, "accumulate=4")
    assert [(each.code, each.span.file) for each in found] == [("E417", "<--set>")]


def test_a_model_without_a_block_and_a_block_that_does_not_parse() -> None:
    """The block with a mistake may be the block of the model: no error says that the block is missing."""
    text = f"{MODEL}train net {{\n minimize loss\n optimizer = = 3\n}}\n"
    assert [each.code for each in elaborated(text, "accumulate=4")[1]] == ["E001"]


def test_parameters_keep_their_types() -> None:
    diagnostics = Diagnostics()
    text = source(*SGD)
    module = elaborate(
        parse(text, FILE, diagnostics), diagnostics, settings=["precision.params=bf16"], model="net"
    )
    training = module.programs[0].training
    assert training is not None and training.precision == ("bf16", "f32")
    ((function,),) = [[update.function for update in training.updates]]
    assert isinstance(function.arguments[0].value.type, TensorType)
    assert function.arguments[0].value.type.dtype == "bf16"
