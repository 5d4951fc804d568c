"""Help for names of Python, NumPy, PyTorch, Flax and Optax: the names to write here."""

from collections.abc import Collection, Mapping, Sequence

DENSE = "write `nn.dense[d_out = classes](x)`, with `import nn` and `dim classes = 10`"
EMBEDDING = "write `nn.embedding[vocab = vocab, d_model = d_model](ids)`, with `import nn`"
NORM = "write `nn.layer_norm(x, d)`, with `import nn` and the dimension `d`"
BATCH_NORM = "write `nn.batch_norm(x)`, with `import nn`"
CONVOLUTION = "the module `conv` has convolutions: add `import conv`"
ORDER = "call functions one after the other: `h = relu(x)`, and then `y = nn.dense[d_out = classes](h)`"
MAPPED = "a function already maps over all other dimensions: `...` stands for them in its signature"
COMPILED = "write only the call: whole models are compiled"
GRADIENT = (
    "a `train` block derives gradients: `train m { minimize loss; optimizer = sgd(learning_rate = 0.1) }`; "
    "inside of a model, `gradients(loss, [w])` has them"
)

LAYERS: Mapping[str, str] = {
    **dict.fromkeys(("Linear", "Dense", "LazyLinear"), DENSE),
    **dict.fromkeys(("Embedding", "Embed"), EMBEDDING),
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "Conv", "Conv2D", "ConvTranspose2d"), CONVOLUTION),
    **dict.fromkeys(("MaxPool2d", "AvgPool2d", "max_pool", "avg_pool"), CONVOLUTION),
    **dict.fromkeys(("BatchNorm", "BatchNorm1d", "BatchNorm2d"), BATCH_NORM),
    **dict.fromkeys(("Sequential", "ModuleList"), ORDER),
    **dict.fromkeys(("vmap", "pmap", "vectorize"), MAPPED),
    **dict.fromkeys(("jit", "checkpoint", "remat", "compile"), COMPILED),
    **dict.fromkeys(("grad", "value_and_grad"), GRADIENT),
    "LayerNorm": NORM,
    "RMSNorm": NORM.replace("layer_norm", "rms_norm"),
    "ReLU": "write `relu(x)`",
    "Tanh": "write `tanh(x)`",
    "Sigmoid": "write `sigmoid(x)`",
    "GELU": "write `nn.gelu(x)`, with `import nn`",
    "SiLU": "write `nn.silu(x)`, with `import nn`",
    "Softplus": "write `nn.softplus(x)`, with `import nn`",
    "LeakyReLU": "write `nn.leaky_relu(x)`, with `import nn`",
    "ELU": "write `nn.elu(x)`, with `import nn`",
    "Softmax": "write `nn.softmax(x, d)`, with `import nn` and the dimension `d`",
    "LogSoftmax": "write `nn.log_softmax(x, d)`, with `import nn` and the dimension `d`",
    "Dropout": "write `nn.dropout(x, rate = 0.1)`, with `import nn`",
    "Flatten": "write `reshape(x -> [dims])`",
    "CrossEntropyLoss": "write `mean(nn.cross_entropy[vocab = classes](logits, labels))`, with `import nn`",
}
"""Layers and transformations, which Python calls twice: `nn.Linear(16, 10)(h)`."""

DRAWN = "write `random.bernoulli([dims], 0.5)`, or round `random.uniform([dims])`"
PARAM = "param w: [dims] = normal(stddev = 0.02)"
NO_PRODUCT = "there is no operator `@`"
EINSUM = "write `einsum(a, b -> [dims])`, with the dimensions of the result"
GATHER = "write `gather(table, ids, d)`"
SIZE = "the size of a dimension is its name: `batch`"
BY_LAYOUT = "a layout splits tensors, and collectives follow from it: `layout data on line = { batch: all }`"
CAST = "write `cast(x, f32)`, with the dtype that is wanted"
ADD_ONE = "dimensions are matched by name: write `broadcast(x -> [dims])` to add one"
JOIN = "write `concat(a, b, left -> both, right -> both)`"
WATCH = "write `watch x`: each run and each step of training hands the value out"
REORDER = "write `transpose(x -> [dims])`, with the dimensions in the wanted order"
FUNCTIONS: Mapping[str, str] = {
    **dict.fromkeys(("matmul", "dot", "bmm", "mm", "tensordot", "inner", "outer"), EINSUM),
    **dict.fromkeys(("int", "float", "astype", "to", "type", "asarray", "array", "tensor", "Tensor"), CAST),
    **dict.fromkeys(("permute", "swapaxes", "moveaxis", "t", "T"), REORDER),
    **dict.fromkeys(("view", "flatten", "ravel"), "write `reshape(x -> [dims])`"),
    **dict.fromkeys(
        ("unsqueeze", "expand_dims", "squeeze", "repeat", "tile", "expand", "broadcast_to"), ADD_ONE
    ),
    **dict.fromkeys(("cat", "concatenate", "stack", "hstack", "vstack"), JOIN),
    **dict.fromkeys(("arange", "linspace"), "write `range(d)` for the positions along a dimension"),
    **dict.fromkeys(("len", "size", "shape", "ndim", "numel"), SIZE),
    **dict.fromkeys(("psum", "all_reduce", "all_gather", "with_sharding_constraint", "shard"), BY_LAYOUT),
    **dict.fromkeys(("print", "item", "numpy", "tolist"), WATCH),
    **dict.fromkeys(("clip", "clamp"), "write `minimum(maximum(x, low), high)`"),
    **dict.fromkeys(("take", "take_along_axis", "index_select", "embedding_lookup"), GATHER),
    **dict.fromkeys(("index_add", "segment_sum", "bincount"), "write `scatter_add(updates, ids, d, [dims])`"),
    **dict.fromkeys(("pow", "power"), "write `x ** y`"),
    **dict.fromkeys(("detach", "no_grad"), "write `stop_gradient(x)`"),
    "reduce_sum": "write `sum(x, over = [dims])`",
    **dict.fromkeys(("reduce_mean", "average"), "write `mean(x, over = [dims])`"),
    **dict.fromkeys(("randn", "normal", "randn_like"), f"write `random.normal([dims])`, or `{PARAM}`"),
    **dict.fromkeys(("rand", "uniform", "rand_like"), "write `random.uniform([dims])`"),
    **dict.fromkeys(("bernoulli", "randint"), DRAWN),
    **dict.fromkeys(("Parameter", "Variable", "get_variable"), f"write `{PARAM}`"),
    "topk": "write `values, indices = top_k(x, d -> k)`",
    "roll": "write `shift(x, d, by = 1, wrap = true)`",
    "zeros_init": "write `zeros()`",
    "amax": "write `max(x, over = [dims])`",
    "amin": "write `min(x, over = [dims])`",
    "fabs": "write `abs(x)`",
}
"""Functions and methods of NumPy, JAX and PyTorch that have another name here."""

HYPERPARAMETERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "rate", "step_size", "alpha", "learningRate"), ("learning_rate",)),
    **dict.fromkeys(("betas",), ("beta1", "beta2")),
    **dict.fromkeys(("b1", "beta_1"), ("beta1",)),
    **dict.fromkeys(("b2", "beta_2"), ("beta2",)),
    **dict.fromkeys(("eps", "eps_root"), ("epsilon",)),
    **dict.fromkeys(("wd", "decay", "weight_decay_rate"), ("weight_decay",)),
}

DIMENSIONS = frozenset(("dim", "axis", "axes", "dims"))
"""Arguments that choose dimensions by number in Python."""


def hyperparameter(name: str, known: Collection[str]) -> str | None:
    """Return help for a hyperparameter with another name here."""
    meant = HYPERPARAMETERS.get(name, ())
    if not meant or not set(meant) <= set(known):
        return None
    return f"write {' and '.join(f'`{each} = ...`' for each in meant)}"


def optimizer(name: str, known: Collection[str]) -> str | None:
    """Return the optimizer that has this name in lower-case letters."""
    return next((each for each in known if each == name.lower()), None)


VALUES: Mapping[str, str] = {
    "True": "write `true`",
    "False": "write `false`",
    **dict.fromkeys(("None", "null"), "there is no such value: leave the argument out"),
    "pi": "write `3.141592653589793`",
    "inf": "write a large number, such as `1e30`",
    "nan": "there is no such number",
}

OF_COMMAND = "the command has it: `mtfc train FILE --epochs 3`, `--steps`, `--seed`"
OF_OPTIMIZER = (
    "an optimizer has it: `optimizer = adam(learning_rate = 0.1)`, or `--set optimizer.learning_rate=0.1`"
)
ENTRIES: Mapping[str, str] = {
    **dict.fromkeys(("epochs", "steps", "seed"), OF_COMMAND),
    **dict.fromkeys(("batch_size", "batch"), "the batch is a dimension: `dim batch = 32`"),
    **dict.fromkeys(("learning_rate", "lr"), OF_OPTIMIZER),
    **dict.fromkeys(("loss", "objective"), "write `minimize loss`"),
    "metrics": "write `report accuracy`",
    "dtype": "write `precision = { params: f32, compute: bf16 }`",
}
"""Entries of a `train` block that other libraries have."""

INTEGERS = "integers are `i32` and `u32`"
DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("i64", "int64", "long", "i8", "int8", "i16", "int16", "short"), INTEGERS),
    **dict.fromkeys(("u64", "uint64", "u8", "uint8", "byte", "u16", "uint16"), INTEGERS),
    **dict.fromkeys(("int", "int32"), f"write `i32`; {INTEGERS}"),
    **dict.fromkeys(("uint", "uint32"), f"write `u32`; {INTEGERS}"),
    **dict.fromkeys(("float", "float32", "single", "fp32"), "write `f32`"),
    **dict.fromkeys(("float64", "double", "fp64"), "write `f64`"),
    **dict.fromkeys(("float16", "half", "fp16"), "write `f16`"),
    **dict.fromkeys(("bfloat16", "brain"), "write `bf16`"),
    **dict.fromkeys(("bool_", "boolean"), "write `bool`"),
}

MODULES = frozenset(("np", "numpy", "jnp", "jax", "torch", "tf", "mtf", "F", "math", "lax", "nnx", "keras"))
"""Modules that Python programs import."""


def attribute(name: str, dims: Sequence[str]) -> str | None:
    """Return help for `x.T` and `x.shape`, where `x` is a value with these dimensions."""
    if name in ("T", "mT", "H"):
        order = ", ".join(reversed(dims)) or "dims"
        return f"dimensions are matched by name, in any order; `transpose(x -> [{order}])` changes it"
    if name in ("shape", "size", "ndim"):
        sizes = ", ".join(f"`{dim}`" for dim in dims)
        return f"the size of a dimension is its name: {sizes}" if sizes else "it is a scalar"
    if name == "dtype":
        return "the dtype stands in the type; `cast(x, f32)` changes it"
    return None
