"""The training steps that `accuracy` compares: layouts of examples, some with other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from mtfc.compiler.ir.core import Program
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose

EXAMPLES = Path(__file__).parent.parent / "examples"


@attrs.frozen
class Case:
    """A layout of an example, on its own mesh or on `mesh`, with other sizes of some dimensions."""

    model: str
    layout: str
    mesh: str | None = None
    dims: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        sizes = ", ".join(f"{dim} {size}" for dim, size in self.dims[:2])
        return f"{self.model} {self.layout}" + (f" ({sizes})" if sizes else "")

    def lowered(self) -> Program:
        path = EXAMPLES / f"{self.model}.mtf"
        choice = Choice(model=None, layout=self.layout, mesh=self.mesh, dims=dict(self.dims))
        selection = choose(path.read_text(), str(path), choice)
        return selection.cases[0].lower(selection.program)


def _cases(model: str, layouts: Mapping[str, str | None], **dims: int) -> list[Case]:
    return [Case(model, layout, mesh, tuple(dims.items())) for layout, mesh in layouts.items()]


TWO_LAYER = dict.fromkeys(("replicated", "data_parallel", "model_parallel", "hybrid", "tiled_3d"))
DIGITS = dict.fromkeys(("replicated", "batch_split", "hidden_split", "tiled", "image_split"))
TRANSFORMER = {"data_parallel": "all:8", "model_parallel": "all:8", "hybrid": "rows:2;cols:4"}
SMALL = {"d_model": 256, "length": 128, "vocab": 4096, "d_k": 32, "layers": 2}

MEASURED = (
    *_cases("two_layer", TWO_LAYER, batch=1024, io=256),
    *_cases("two_layer", TWO_LAYER, batch=128, io=1024),
    *_cases("digits", DIGITS, batch=960, hidden=2048, rows=16, cols=16),
    *_cases("soybean_mlp", {"data": "gpus:8", "hybrid": "groups:2;gpus:4"}, batch=800, units=1024),
    *_cases("transformer_lm", TRANSFORMER, batch=16, heads=8, d_ff=1024, **SMALL),
    *_cases("moe_lm", {"expert_parallel": None, "hybrid": "rows:4;cols:2"}, batch=16, groups=8, d_ff=512, **SMALL),
    *_cases("lenet", {"data": "gpus:8", "hybrid": "rows:4;cols:2"}, batch=1024),
    *_cases("rnnlm", {"data": "nodes:2;gpus:4", "hybrid": "nodes:2;gpus:4"}, batch=64, units=512, words=4000, length=10),
)  # fmt: skip

Compared = tuple[tuple[str, Case], ...]
"""Steps with the TPU topologies that they are compiled for."""

LLAMA = (("batch", 16), ("length", 2048), ("layers", 4), ("vocab", 32768))
LANGUAGE = (("batch", 128), ("length", 512), ("d_model", 1024), ("d_ff", 4096), ("heads", 16), ("d_k", 64))
LONG = (("batch", 64), ("length", 1024), ("d_model", 2048), ("d_ff", 8192), ("heads", 16), ("d_k", 128))
TRANSLATION = (
    ("batch", 64),
    ("positions", 512),
    ("d_model", 1024),
    ("d_ff", 4096),
    ("heads", 16),
    ("d_k", 64),
)
SHORT = (("batch", 16), ("length", 1024), ("layers", 4), ("vocab", 32768))
NARROW = (("batch", 64), ("length", 512), ("d_model", 1024), ("d_ff", 4096), ("heads", 16), ("d_k", 64))
SMALL_TRANSLATION = (
    ("batch", 32),
    ("positions", 128),
    ("d_model", 512),
    ("d_ff", 2048),
    ("heads", 16),
    ("d_k", 32),
)
SHORTER = (("batch", 8), ("length", 1024), ("layers", 4), ("vocab", 32768))
SMALL_IMAGES = (("height", 256), ("width", 256))

LARGE: Compared = (
    ("v2:2x2", Case("two_layer", "hybrid", None, (("batch", 8192), ("io", 2048)))),
    ("v3:2x2", Case("two_layer", "tiled_3d", None, (("batch", 8192), ("io", 2048)))),
    ("v5e:2x4", Case("two_layer", "data_parallel", None, (("batch", 8192), ("io", 2048)))),
    (
        "v2:2x2",
        Case("digits", "tiled", None, (("batch", 8192), ("hidden", 8192), ("rows", 64), ("cols", 64))),
    ),
    ("v2:16x16", Case("transformer_lm", "hybrid")),
    ("v3:8x16", Case("transformer_lm", "model_parallel")),
    ("v3:2x2", Case("vgg16", "data")),
    ("v3:2x2", Case("alexnet", "data")),
    ("v2:16x16", Case("transformer_seq2seq", "hybrid")),
    ("v5e:2x4", Case("transformer_lm", "data_parallel", "all:8", LANGUAGE)),
    ("v5p:2x2x2", Case("llama", "tensor_parallel", "data:4;model:2", LLAMA)),
    ("v3:2x2", Case("moe_lm", "expert_parallel")),
    ("v3:2x2", Case("rnnlm", "data", "nodes:2;gpus:4", (("batch", 512),))),
    ("v2:2x2", Case("lenet", "data", "gpus:8", (("batch", 8192),))),
    ("v2:2x2", Case("soybean_cnn", "data")),
    ("v3:2x2", Case("resnet101", "data", "nodes:2;gpus:4", (("batch", 256),))),
    ("v2:2x2", Case("nmt", "data", "nodes:2;gpus:4", (("batch", 256),))),
    ("v3:2x2", Case("rnntc", "hybrid", "nodes:2;gpus:4", (("batch", 512),))),
    ("v3:2x2", Case("unet", "data", "rows:2;cols:4")),
    ("v5e:2x4", Case("soybean_mlp_8k", "tiled", "groups:2;gpus:4")),
    ("v5p:2x2x2", Case("transformer_lm", "hybrid", "rows:2;cols:4", LONG)),
    ("v5e:2x4", Case("transformer_seq2seq", "data_parallel", "all:8", TRANSLATION)),
    ("v5e:2x4", Case("moe_lm", "hybrid", "rows:4;cols:2")),
    ("v5e:2x4", Case("inception_v3", "data", "nodes:2;gpus:4", (("batch", 128),))),
    ("v6e:2x4", Case("llama", "tensor_parallel", "data:4;model:2", SHORT)),
    ("v4:2x2x2", Case("transformer_lm", "data_parallel", "all:8", NARROW)),
    ("v2:2x2", Case("rnntc", "data", "nodes:2;gpus:4", (("batch", 256),))),
    ("v5p:2x2x2", Case("moe_lm", "expert_parallel")),
    ("v6e:2x4", Case("soybean_mlp_8k", "hybrid", "groups:2;gpus:4")),
    ("v5e:2x4", Case("rnnlm", "hybrid", "nodes:2;gpus:4", (("batch", 256),))),
    ("v4:2x2x2", Case("vgg16", "data")),
    ("v2:2x2", Case("transformer_seq2seq", "model_parallel", "all:8", SMALL_TRANSLATION)),
)
"""Networks of many sizes. XLA sends exactly the elements that `mtfc cost` predicts."""

OTHERS: Compared = (
    ("v5p:2x2x2", Case("rnnlm", "flexflow", "nodes:2;gpus:4", (("batch", 256),))),
    ("v3:2x2", Case("rnnlm", "model", "gpus:8", (("batch", 128),))),
    ("v6e:2x4", Case("nmt", "hybrid", "nodes:2;gpus:4", (("batch", 128),))),
    ("v5e:2x4", Case("llama", "fsdp", "data:4;model:2", SHORTER)),
    ("v4:2x2x2", Case("soybean_cnn", "hybrid")),
    ("v5p:2x2x2", Case("alexnet", "hybrid", "groups:4;gpus:2")),
    ("v3:2x2", Case("transformer_lm", "hybrid", "rows:2;cols:4", NARROW)),
    ("v5e:2x4", Case("vgg16", "mixed")),
    ("v4:2x2x2", Case("lenet", "hybrid", "rows:2;cols:4", (("batch", 2048),))),
    ("v5e:2x4", Case("soybean_cnn", "data", "gpus:8", (("height", 24), ("width", 24), ("channels", 512)))),
    ("v3:2x2", Case("soybean_cnn", "tiled", "groups:2;gpus:4")),
    ("v4:2x2x2", Case("digits", "image_split", None, (("batch", 4096), ("hidden", 4096)))),
    ("v5p:2x2x2", Case("soybean_mlp", "hybrid", "groups:2;gpus:4", (("batch", 4096),))),
    ("v6e:2x4", Case("rnntc", "data", "nodes:2;gpus:4", (("batch", 256),))),
    ("v4:2x2x2", Case("two_layer", "model_parallel", None, (("batch", 4096), ("io", 1024)))),
    ("v6e:2x4", Case("digits", "hidden_split", None, (("batch", 8192), ("hidden", 4096)))),
    ("v5p:2x2x2", Case("digits", "batch_split", None, (("batch", 8192), ("hidden", 8192)))),
    ("v3:2x2", Case("soybean_mlp", "data", "gpus:8", (("batch", 4096),))),
    ("v5e:2x4", Case("nmt", "data", "nodes:2;gpus:4", (("batch", 128),))),
    ("v4:2x2x2", Case("rnnlm", "hybrid", "nodes:2;gpus:4", (("batch", 256),))),
    ("v6e:2x4", Case("transformer_lm", "data_parallel", "all:8", NARROW)),
    ("v5p:2x2x2", Case("transformer_seq2seq", "model_parallel", "all:8", SMALL_TRANSLATION)),
    ("v3:2x2", Case("lenet", "hybrid", "rows:2;cols:4", (("batch", 4096),))),
    ("v4:2x2x2", Case("llama", "fsdp", "data:4;model:2", SHORTER)),
    ("v6e:2x4", Case("two_layer", "tiled_3d", None, (("batch", 8192), ("io", 2048)))),
    ("v6e:2x4", Case("soybean_mlp", "hybrid", "groups:2;gpus:4", (("batch", 4096),))),
    ("v6e:2x4", Case("digits", "tiled", None, (("batch", 4096), ("hidden", 2048)))),
    ("v6e:2x4", Case("rnnlm", "data", "nodes:2;gpus:4", (("batch", 256),))),
    ("v4:2x2x2", Case("rnntc", "data", "nodes:2;gpus:4", (("batch", 256),))),
    ("v5p:2x2x2", Case("rnntc", "hybrid", "nodes:2;gpus:4", (("batch", 512),))),
    ("v4:2x2x2", Case("nmt", "data", "nodes:2;gpus:4", (("batch", 128),))),
    ("v5p:2x2x2", Case("nmt", "hybrid", "nodes:2;gpus:4", (("batch", 128),))),
    ("v5e:2x4", Case("rnnlm", "data", "nodes:2;gpus:4", (("batch", 256),))),
    ("v6e:2x4", Case("rnnlm", "hybrid", "nodes:2;gpus:4", (("batch", 128),))),
)
"""Networks with loops, and smaller networks. In some XLA sends all-reduces instead of reduce-scatters."""

FEW_IMAGES: Compared = (
    ("v3:2x2", Case("resnet101", "data", "nodes:2;gpus:4", (("batch", 16),))),
    ("v4:2x2x2", Case("vgg16", "data", None, (("batch", 16),))),
    ("v5e:2x4", Case("unet", "data", "rows:2;cols:4", (("batch", 16), *SMALL_IMAGES))),
    ("v5p:2x2x2", Case("unet", "hybrid", "rows:4;cols:2", (("batch", 8), *SMALL_IMAGES))),
    ("v2:2x2", Case("alexnet", "data", None, (("batch", 32),))),
    ("v6e:2x4", Case("resnet101", "data", "nodes:2;gpus:4", (("batch", 32),))),
    ("v4:2x2x2", Case("unet", "tiles", "rows:2;cols:4", (("batch", 4), *SMALL_IMAGES))),
    ("v3:2x2", Case("inception_v3", "data", "nodes:2;gpus:4", (("batch", 32),))),
    ("v5e:2x4", Case("vgg16", "data", None, (("batch", 32),))),
    ("v4:2x2x2", Case("alexnet", "data", None, (("batch", 32),))),
    ("v6e:2x4", Case("unet", "data", "rows:2;cols:4", (("batch", 8), *SMALL_IMAGES))),
    ("v5p:2x2x2", Case("inception_v3", "data", "nodes:2;gpus:4", (("batch", 16),))),
)
"""Convolutional networks with one to four images a core."""

AS_DECLARED: Compared = tuple(
    (topology, Case(model, layout))
    for topology in ("v4:2x2x2", "v5e:2x4", "v5p:2x2x2", "v6e:2x4")
    for model, layouts in (("two_layer", TWO_LAYER), ("digits", DIGITS))
    for layout in layouts
)
"""The two smallest examples under all layouts, which lie in the scratchpad from v4 on."""

IN_SCRATCHPAD: Compared = (
    ("v4:2x2x2", Case("two_layer", "hybrid", None, (("batch", 512), ("io", 256)))),
    ("v5p:2x2x2", Case("two_layer", "data_parallel", None, (("batch", 1024), ("io", 512)))),
    ("v6e:2x4", Case("two_layer", "replicated", None, (("batch", 256), ("io", 512)))),
    ("v5e:2x4", Case("two_layer", "tiled_3d", None, (("batch", 2048), ("io", 256)))),
    ("v6e:2x4", Case("digits", "batch_split", None, (("batch", 960), ("hidden", 1024)))),
    ("v5e:2x4", Case("digits", "image_split", None, (("batch", 480), ("hidden", 2048)))),
    ("v4:2x2x2", Case("digits", "tiled", None, (("batch", 1920), ("hidden", 4096)))),
    ("v5p:2x2x2", Case("digits", "hidden_split", None, (("batch", 2400), ("hidden", 512)))),
    ("v6e:2x4", Case("lenet", "data", None, (("batch", 512),))),
    ("v5e:2x4", Case("lenet", "hybrid", None, (("batch", 256),))),
    ("v4:2x2x2", Case("lenet", "mixed", None, (("batch", 1024),))),
    ("v4:2x2x2", Case("two_layer", "data_parallel", None, (("batch", 2048), ("io", 128)))),
    ("v5e:2x4", Case("two_layer", "hybrid", None, (("batch", 4096), ("io", 512)))),
    ("v6e:2x4", Case("two_layer", "model_parallel", None, (("batch", 1024), ("io", 1024)))),
    ("v5p:2x2x2", Case("two_layer", "tiled_3d", None, (("batch", 512), ("io", 512)))),
    ("v5e:2x4", Case("digits", "tiled", None, (("batch", 3840), ("hidden", 1024)))),
    ("v6e:2x4", Case("digits", "image_split", None, (("batch", 240), ("hidden", 512)))),
    ("v4:2x2x2", Case("digits", "replicated", None, (("batch", 480), ("hidden", 256)))),
    ("v5p:2x2x2", Case("digits", "batch_split", None, (("batch", 1920), ("hidden", 2048)))),
)
"""Small networks of other sizes that lie in the scratchpad."""
