"""`mtfc run`: data in and out, on both backends, with numbers checked against NumPy."""

from pathlib import Path

import numpy as np
import pytest

from mtfc import compile as compile_model
from tests.cli.conftest import Mtfc

RNG = np.random.default_rng(0)
W = RNG.standard_normal((6, 3)).astype(np.float32)
BIAS = RNG.standard_normal(3).astype(np.float32)
BACKENDS = ("numpy", "jax")
LAYOUTS = ("replicated", "data", "both")


def arrays(batches: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4 * batches, 6)).astype(np.float32)
    return {"x": x, "labels": rng.integers(0, 3, 4 * batches).astype(np.int32)}


def outputs(x: np.ndarray, labels: np.ndarray, w: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, float]:
    """Compute the model's outputs."""
    y = x @ w + bias
    return y, float(np.square(y - np.eye(3)[labels]).mean())


@pytest.fixture
def files(folder: Path) -> Path:
    np.savez(folder / "data.npz", **arrays())
    np.savez(folder / "params.npz", w=W, bias=BIAS)
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs(mtfc: Mtfc, files: Path, backend: str, layout: str) -> None:
    options = ["--data", "data.npz", "--params", "params.npz", "--save", "out.npz", "--format", "json"]
    outcome = mtfc("run", "model.mtf", "--backend", backend, "--layout", layout, *options)
    assert (outcome.status, outcome.err) == (0, "")
    y, loss = outputs(**arrays(), w=W, bias=BIAS)
    with np.load("out.npz") as saved:
        assert set(saved.files) == {"y", "loss"}
        np.testing.assert_allclose(saved["y"], y, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(saved["loss"], loss, rtol=1e-5)
    found = outcome.json
    assert (found["backend"], found["layout"]) == (backend, layout)
    assert found["mesh"] == ({"rows": 2, "cols": 3} if layout == "both" else {"all": 2})
    assert found["outputs"]["y"]["shape"] == [4, 3]
    assert found["outputs"]["loss"]["value"] == pytest.approx(loss, rel=1e-5)
    assert [step["step"] for step in found["steps"]] == [1]
    assert found["steps"][0]["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["steps"][0]["seconds"] > 0


def test_several_batches_are_run_in_order_and_joined(mtfc: Mtfc, files: Path) -> None:
    np.savez("data.npz", **arrays(3))
    asked = ("run", "model.mtf", "--data", "data.npz", "--params", "params.npz", "--format", "json")
    outcome = mtfc(*asked, "--save", "out.npz")
    y, _ = outputs(**arrays(3), w=W, bias=BIAS)
    with np.load("out.npz") as saved:
        np.testing.assert_allclose(saved["y"], y, rtol=1e-5, atol=1e-5)
        assert saved["loss"].shape == (3,)
        assert saved["loss"].tolist() == pytest.approx([step["loss"] for step in outcome.json["steps"]])
    first = mtfc(*asked, "--steps", "1")
    assert [step["loss"] for step in first.json["steps"]] == [outcome.json["steps"][0]["loss"]]


def trained(steps: int, batches: int) -> tuple[dict[str, np.ndarray], list[float]]:
    """The parameters and losses of gradient descent, written out."""
    data, w, bias, losses = arrays(batches), W.astype(np.float64), BIAS.astype(np.float64), []
    for step in range(steps):
        at = slice(4 * (step % batches), 4 * (step % batches + 1))
        x, labels = data["x"][at], data["labels"][at]
        y, loss = outputs(x, labels, w, bias)
        losses.append(loss)
        d_y = 2 * (y - np.eye(3)[labels]) / y.size
        w, bias = w - 0.1 * x.T @ d_y, bias - 0.1 * d_y.sum(0)
    return {"w": w, "bias": bias}, losses


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_training(mtfc: Mtfc, files: Path, backend: str, layout: str) -> None:
    """Three batches, used again from the start; parameters and losses are saved."""
    np.savez("data.npz", **arrays(3))
    files_given = ["--data", "data.npz", "--params", "params.npz", "--save", "out.npz"]
    training = ["--train", "--steps", "7", "--backend", backend, "--layout", layout]
    outcome = mtfc("run", "model.mtf", *training, *files_given, "--format", "json")
    parameters, losses = trained(7, 3)
    with np.load("out.npz") as saved:
        assert set(saved.files) == {"w", "bias", "loss"}
        np.testing.assert_allclose(saved["loss"], losses, rtol=1e-5)
        for name, array in parameters.items():
            np.testing.assert_allclose(saved[name], array, rtol=1e-4, atol=1e-6)
    assert [step["loss"] for step in outcome.json["steps"]] == pytest.approx(losses, rel=1e-5)
    again = mtfc("run", "model.mtf", "--data", "data.npz", "--params", "out.npz")
    assert again.status == 0, "a saved file gives the parameters of a later run"


def test_one_pass_over_the_data_is_the_default(mtfc: Mtfc, files: Path) -> None:
    np.savez("data.npz", **arrays(3))
    assert (
        len(mtfc("run", "model.mtf", "--train", "--data", "data.npz", "--format", "json").json["steps"]) == 3
    )


def test_text_of_training(mtfc: Mtfc, files: Path) -> None:
    np.savez("test.npz", **arrays(2))
    outcome = mtfc("run", "model.mtf", "--train", "--steps", "45", "--data", "data.npz", "--eval", "test.npz")
    lines = [line for line in outcome.out.splitlines() if line.startswith("step ")]
    assert [int(line.split()[1]) for line in lines] == [*range(2, 46, 2), 45]
    assert all("   eval:  loss " in line for line in lines)


def test_seeds(mtfc: Mtfc) -> None:
    """Drawn numbers depend on the seed alone, not on the layout or backend."""

    def loss(*options: str) -> float:
        outcome = mtfc("run", "model.mtf", *options, "--format", "json")
        assert outcome.err.startswith("mtfc: no --data: the inputs are drawn from seed ")
        return float(outcome.json["outputs"]["loss"]["value"])

    assert loss() == pytest.approx(loss("--layout", "both", "--backend", "jax"), rel=1e-5)
    assert loss() != pytest.approx(loss("--seed", "1"), rel=1e-3)


ERRORS = {
    "E501": ({"params": b"no npz"}, "cannot read arrays: it is no NPZ file\n --> params.npz:1:1"),
    "E502": ({"data": {"X": arrays()["x"]}}, "data.npz has no array for input `labels`"),
    "E503": ({"data": {**arrays(), "x": np.zeros((4, 5), np.float32)}},
     "input `x` is f32[batch: 4, io: 6], and its array in data.npz has shape [4, 5]\n  --> model.mtf:12:13"),
    "E504": ({"data": {**arrays(), "labels": np.zeros(4, np.float32)}},
     "input `labels` is i32, and its array in data.npz is float32\n  --> model.mtf:12:32"),
    "E505": ({"params": {"W": W}}, "params.npz has an array `W`, which is no parameter\n --> params.npz:1:1"),
    "E502 of a parameter": ({"params": {"w": W}}, "params.npz has no array for parameter `bias`\n  --> model.mtf:14:9"),
    "E506": ({"data": {**arrays(2), "labels": arrays(3)["labels"]}},
     "the inputs have different numbers of batches: 2 of `x`, 3 of `labels`"),
}  # fmt: skip


@pytest.mark.parametrize("code", ERRORS)
def test_data_that_does_not_fit(mtfc: Mtfc, files: Path, code: str) -> None:
    contents, message = ERRORS[code]
    for name, content in contents.items():
        if isinstance(content, bytes):
            Path(f"{name}.npz").write_bytes(content)
        else:
            np.savez(f"{name}.npz", **content)
    outcome = mtfc("run", "model.mtf", "--data", "data.npz", "--params", "params.npz")
    assert (outcome.status, outcome.out) == (1, "")
    assert f"error[{code[:4]}]: {message}" in outcome.err


def test_all_that_is_wrong_with_parameters_is_named(mtfc: Mtfc, files: Path) -> None:
    """Missing, misshaped and unknown parameters are named in one run, by both commands that take a file of parameters."""
    text = (files / "model.mtf").read_text()
    (files / "model.mtf").write_text(
        text.replace("+ bias", "+ bias + scale").replace(
            "  param bias", "  param scale: f32[classes] = ones()\n  param bias"
        )
    )
    np.savez("params.npz", w=W.T, weights=W, loss=np.zeros(3))
    for command in ("run", "verify"):
        outcome = mtfc(command, "model.mtf", "--data", "data.npz", "--params", "params.npz")
        assert (outcome.status, outcome.out) == (1, "")
        for wrong in (
            "error[E502]: params.npz has no array for parameter `bias`",
            "error[E502]: params.npz has no array for parameter `scale`",
            "error[E503]: parameter `w` is f32[io: 6, classes: 3], and its array in params.npz has shape [3, 6]",
            "error[E505]: params.npz has an array `weights`, which is no parameter",
        ):
            assert wrong in outcome.err
        assert outcome.err.count("error[") == 4, "losses, as --save writes them, are passed over"
        assert "= help: `--params-partial` draws what the file lacks from --seed" in outcome.err


def test_a_missing_parameter_may_have_been_misspelt(mtfc: Mtfc, files: Path) -> None:
    np.savez("params.npz", w=W, bais=BIAS)
    assert "did you mean its array `bais`?" in mtfc("run", "model.mtf", "--params", "params.npz").err


@pytest.mark.parametrize("backend", BACKENDS)
def test_missing_parameters_are_drawn_on_demand(mtfc: Mtfc, files: Path, backend: str) -> None:
    np.savez("params.npz", bias=BIAS)
    options = ["--train", "--steps", "1", "--save", "out.npz", "--backend", backend, "--seed", "3"]
    given = ["--data", "data.npz", "--params", "params.npz", "--params-partial"]
    outcome = mtfc("run", "model.mtf", *options, *given)
    assert (outcome.status, outcome.err) == (
        0,
        "mtfc: params.npz lacks 1 of 2 parameters, drawn from seed 3: w\n",
    )
    drawn = init("model.mtf", 3)["w"]
    y, _ = outputs(**arrays(), w=drawn, bias=BIAS)
    d_y = 2 * (y - np.eye(3)[arrays()["labels"]]) / y.size
    with np.load("out.npz") as saved:
        np.testing.assert_allclose(saved["bias"], BIAS - 0.1 * d_y.sum(0), rtol=1e-5, atol=1e-6)
    np.savez("params.npz", w=W.T)
    assert mtfc("run", "model.mtf", *given).status == 1, "a wrong shape stays wrong"


def test_partial_parameters_in_verify(mtfc: Mtfc, files: Path) -> None:
    np.savez("params.npz", bias=BIAS)
    given = ["--params", "params.npz", "--params-partial", "--layout", "both", "--backend", "numpy"]
    outcome = mtfc("verify", "model.mtf", *given, "--format", "json")
    assert outcome.json["ok"] is True
    assert outcome.err == "mtfc: params.npz lacks 1 of 2 parameters, drawn from seed 0: w\n"


def init(path: str, seed: int) -> dict[str, np.ndarray]:
    module = compile_model(path).load("numpy")
    return dict(module.unshard(module.init(seed), module.PARAMETERS))


def test_partial_parameters_of_no_file(mtfc: Mtfc) -> None:
    outcome = mtfc("run", "model.mtf", "--params-partial")
    assert outcome.status == 2
    assert "--params-partial goes with --params" in outcome.err


def test_a_parameter_called_loss(mtfc: Mtfc, files: Path) -> None:
    """The parameter is saved in place of the losses and read again; a file without the parameter is an error."""
    text = (files / "model.mtf").read_text()
    for old, new in (
        ("loss = mean", "error = mean"),
        ("y, loss", "y, error"),
        ("minimize loss", "minimize error"),
    ):
        text = text.replace(old, new)
    (files / "model.mtf").write_text(text.replace("param bias", "param loss").replace("+ bias", "+ loss"))
    outcome = mtfc("run", "model.mtf", "--train", "--data", "data.npz", "--save", "out.npz")
    assert (outcome.status, outcome.err) == (0, "mtfc: out.npz has no losses: a parameter is called `loss`\n")
    with np.load("out.npz") as saved:
        assert {name: saved[name].shape for name in saved.files} == {"w": (6, 3), "loss": (3,)}
    assert mtfc("run", "model.mtf", "--data", "data.npz", "--params", "out.npz").status == 0
    np.savez("params.npz", w=W)
    outcome = mtfc("run", "model.mtf", "--data", "data.npz", "--params", "params.npz")
    assert "error[E502]: params.npz has no array for parameter `loss`" in outcome.err


@pytest.mark.parametrize(
    "array", [np.zeros((3, 3)), np.zeros((2, 6)), np.zeros((0, 6)), np.zeros(()), np.zeros((4, 6, 1))]
)
def test_shapes_that_hold_no_batches(mtfc: Mtfc, files: Path, array: np.ndarray) -> None:
    np.savez("data.npz", **{**arrays(), "x": array})
    assert "error[E503]" in mtfc("run", "model.mtf", "--data", "data.npz").err


@pytest.mark.parametrize(
    ("name", "array", "fits"),
    [
        ("x", np.zeros((4, 6), np.float64), True),
        ("x", np.zeros((4, 6), np.int64), True),
        ("x", np.zeros((4, 6), np.complex64), False),
        ("x", np.zeros((4, 6), "U3"), False),
        ("labels", np.zeros(4, np.int64), True),
        ("labels", np.zeros(4, np.uint8), True),
        ("labels", np.full(4, 2**40), False),
        ("labels", np.zeros(4, bool), False),
    ],
)
def test_dtypes(mtfc: Mtfc, files: Path, name: str, array: np.ndarray, fits: bool) -> None:
    """A number may become one of another width, but not one of another kind."""
    np.savez("data.npz", **{**arrays(), name: array})
    outcome = mtfc("run", "model.mtf", "--data", "data.npz")
    assert outcome.status == (0 if fits else 1)
    assert ("error[E504]" in outcome.err) != fits


def test_nothing_in_a_file_is_executed(mtfc: Mtfc, files: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path("trapped").write_text, ("x",))

    np.savez("data.npz", **{**arrays(), "x": np.array([Trap()])})
    outcome = mtfc("run", "model.mtf", "--data", "data.npz")
    assert outcome.status == 1
    assert "error[E501]: cannot read arrays: it holds Python objects" in outcome.err
    assert not Path("trapped").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"PK\x05\x06" + bytes(18)])
def test_files_that_are_no_arrays(mtfc: Mtfc, files: Path, content: bytes) -> None:
    Path("data.npz").write_bytes(content)
    outcome = mtfc("run", "model.mtf", "--data", "data.npz")
    assert outcome.status == 1
    assert "error[E50" in outcome.err


def test_a_single_array_is_no_npz(mtfc: Mtfc, files: Path) -> None:
    with Path("data.npz").open("wb") as file:
        np.save(file, W)
    assert "it holds one array without a name" in mtfc("run", "model.mtf", "--data", "data.npz").err


def test_missing_data(mtfc: Mtfc) -> None:
    outcome = mtfc("run", "model.mtf", "--data", "missing.npz")
    assert outcome.status == 1
    assert "error[E501]: cannot read arrays: no such file or directory\n --> missing.npz:1:1" in outcome.err


def test_more_steps_than_batches(mtfc: Mtfc, files: Path) -> None:
    outcome = mtfc("run", "model.mtf", "--data", "data.npz", "--steps", "2")
    assert (outcome.status, outcome.err) == (2, "mtfc: --steps 2: data.npz holds 1 batch\n")


def test_a_model_that_cannot_be_trained(mtfc: Mtfc, folder: Path) -> None:
    text = (folder / "model.mtf").read_text()
    (folder / "model.mtf").write_text(text[: text.index("train small")])
    outcome = mtfc("run", "model.mtf", "--train")
    assert (outcome.status, outcome.out) == (2, "")
    assert "model small cannot be trained" in outcome.err
    assert mtfc("run", "model.mtf", "--format", "json").json["steps"][0]["loss"] is None


def test_numbers_that_are_not_finite_are_null_in_json(mtfc: Mtfc, files: Path) -> None:
    np.savez("data.npz", **{**arrays(), "x": np.full((4, 6), np.inf)})
    outcome = mtfc("run", "model.mtf", "--data", "data.npz", "--format", "json")
    assert outcome.json["outputs"]["loss"]["value"] is None
    assert "NaN" not in outcome.out and "Infinity" not in outcome.out


def test_entries_of_the_train_block_are_changed(mtfc: Mtfc, folder: Path) -> None:
    """`--set` gives the numbers that the same file with the entry gives, on both backends."""
    text = (folder / "model.mtf").read_text()
    changed = text.replace("sgd(learning_rate = 0.1)", "sgd(learning_rate = 0.02)\n  clip = 0.5")
    (folder / "changed.mtf").write_text(changed)
    options = ("--train", "--steps", "3", "--layout", "data", "--format", "json")
    settings = ("--set", "optimizer.learning_rate=0.02", "--set", "clip=0.5")
    for backend in ("numpy", "jax"):
        losses = [
            [step["loss"] for step in mtfc("run", *which, *options, "--backend", backend).json["steps"]]
            for which in (("model.mtf", *settings), ("changed.mtf",), ("model.mtf",))
        ]
        assert losses[0] == losses[1] != losses[2]


DROPPING = """
import nn
dim batch = 4; dim io = 8
model net(x: [batch, io]) {
  param w: [io] = ones()
  h = nn.dropout(x * w, rate = RATE)
  loss = mean(square(h - 1))
  return loss, h
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1); report h }
"""


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_evaluation_drops_nothing(mtfc: Mtfc, folder: Path, backend: str) -> None:
    """`--eval` and a run without `--train` compute the model without dropout, for the current parameters."""
    for name, rate in (("dropping", "0.5"), ("keeping", "0.0")):
        (folder / f"{name}.mtf").write_text(DROPPING.replace("RATE", rate), "utf-8")
    x = np.random.default_rng(0).uniform(0.5, 1.5, (4, 8)).astype(np.float32)
    np.savez("data.npz", x=x)
    options = ["--data", "data.npz", "--backend", backend, "--format", "json"]
    trained = mtfc(
        "run", "dropping.mtf", "--train", *options, "--eval", "data.npz", "--save", "trained.npz"
    ).json
    once = {
        name: mtfc("run", f"{name}.mtf", *options, "--params", "trained.npz").json
        for name in ("dropping", "keeping")
    }
    assert once["dropping"]["outputs"] == once["keeping"]["outputs"]
    assert trained["steps"][0]["eval"]["loss"] == pytest.approx(once["keeping"]["outputs"]["loss"]["value"])
    before = float(np.mean((x - 1) ** 2))
    assert abs(trained["steps"][0]["loss"] - before) > 0.1
