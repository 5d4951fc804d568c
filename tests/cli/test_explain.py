"""`mtfc explain`: the rules that cause each collective, as text and JSON."""

from pathlib import Path

from tests.cli.conftest import Mtfc


def test_nothing_is_sent(mtfc: Mtfc) -> None:
    assert "Nothing is sent." in mtfc("explain", "model.mtf", "--layout", "replicated").out


def test_json_adds_up_to_the_cost(mtfc: Mtfc) -> None:
    record = mtfc("explain", "model.mtf", "--layout", "both", "--format", "json").json
    assert (record["model"], record["layout"], record["mesh"]) == ("small", "both", {"rows": 2, "cols": 3})
    cost = mtfc("cost", "model.mtf", "--layout", "both", "--format", "json").json["layouts"][0]["step"]
    for kind, figures in cost["collectives"].items():
        sent = [each["bytes_per_device"] for each in record["collectives"] if each["kind"] == kind]
        assert sum(sent) == figures["bytes_per_device"]
    assert all(each["causes"] for each in record["collectives"])


def test_equal_arrays_of_a_line_have_one_row(mtfc: Mtfc, folder: Path) -> None:
    layers = "\n".join(f"  w{i}: f32[d, e] = normal(stddev = 0.1)" for i in range(3)).replace(
        "  w", "  param w"
    )
    text = (
        "dim batch = 8; dim d = 4; dim e = 4\nmesh line = [all: 2]\nlayout split on line = { batch: all }\n"
    )
    text += f"model net(x: [batch, d]) {{\n{layers}\n  loss = mean(square(x))"
    text += "".join(f" + mean(square(einsum(x, w{i} -> [batch, e])))" for i in range(3))
    (folder / "net.mtf").write_text(
        f"{text}\n  return loss\n}}\ntrain net {{ minimize loss; optimizer = sgd(learning_rate = 0.1) }}\n"
    )
    assert "3 x all_reduce{all}  192 B  backward" in mtfc("explain", "net.mtf").out


SQUARED = """dim length = 1024; dim memory = 1024; dim d = 4
mesh line = [all: 2]
layout split on line = { length: all }
model net(q: [length, d], k: [memory, d]) {
  s = einsum(q, k -> [length, memory])
  e = exp(s - stop_gradient(max(s, over = memory)))
  w = e / sum(e, over = memory)
  p = w * w
  y = einsum(p, k -> [length, d])
  return y
}
"""


def test_a_softmax_that_stores_its_weights_is_named(mtfc: Mtfc, folder: Path) -> None:
    (folder / "squared.mtf").write_text(SQUARED)
    why = "the weights are changed before they are multiplied with values"
    assert f"    line 6  {why}" in mtfc("explain", "squared.mtf").out
    record = mtfc("explain", "squared.mtf", "--format", "json").json
    assert record["separate_attention"] == [{"file": "squared.mtf", "line": 6, "why": why}]


MASKED = """dim batch = 2; dim length = 1024; dim memory = 1024; dim d = 8
mesh line = [all: 2]
layout split on line = { batch: all }
model net(q: [batch, length, d], k: [batch, memory, d], keep: bool[batch, memory]) {
  s = where(keep, einsum(q, k -> [batch, length, memory]), -30000.0)
  e = exp(s - stop_gradient(max(s, over = memory)))
  y = einsum(e, k -> [batch, length, d]) / sum(e, over = memory)
  return y
}
"""


def test_attention_without_kernels_is_named(mtfc: Mtfc, folder: Path) -> None:
    (folder / "masked.mtf").write_text(MASKED)
    out = mtfc("explain", "masked.mtf").out
    splash = "it has a bias, or a mask other than of positions and one sequence's segments"
    assert f"    line 7  on TPUs  {splash}\n    line 7  on GPUs  its numbers are f32\n" in out
    record = mtfc("explain", "masked.mtf", "--format", "json").json
    assert record["attention_without_kernel"] == [
        {"file": "masked.mtf", "line": 7, "device": "TPU", "why": splash},
        {"file": "masked.mtf", "line": 7, "device": "GPU", "why": "its numbers are f32"},
    ]
