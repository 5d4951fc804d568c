"""Mistakes that people make by the habits of other languages and libraries, each with its message and the remedy.

`IN_FILES`, in a .mtf file: the text of `MODEL`, the wrong text in its place, the code and the start of the message, a piece of
text that the message names as the remedy, and the right text. `ON_THE_COMMAND_LINE`: the wrong arguments, the message, the
remedy, and the right arguments. `IN_PYTHON`: the wrong call, the message, the remedy, and the right call.
"""

MODEL = """\
import nn
import losses

dim batch = 4
dim io = 6
dim classes = 3

mesh line = [all: 2]
mesh grid = [rows: 2, cols: 3]

layout data on line = { batch: all }
layout both on grid = { batch: rows, io: cols }

model small(x: f32[batch, io], labels: i32[batch]) {
  param w: f32[io, classes] = normal(stddev = 0.5)
  y = einsum(x, w -> [batch, classes])
  loss = mean(square(y - one_hot(labels, classes)))
  return y, loss
}

train small {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""

DIM, LINE, DATA = "dim batch = 4", "mesh line = [all: 2]", "layout data on line = { batch: all }"
HEAD = "model small(x: f32[batch, io], labels: i32[batch]) {"
W = "param w: f32[io, classes] = normal(stddev = 0.5)"
Y = "  y = einsum(x, w -> [batch, classes])\n"
BY = "optimizer = sgd(learning_rate = 0.1)"
RIGHT = "einsum(x, w -> [batch, classes])"

IN_FILES: tuple[tuple[str, str, str, str, str], ...] = (
    # dot products and shapes as in NumPy, JAX and PyTorch
    (Y, "  y = x @ w\n", "E004: there is no operator `@`", RIGHT, Y),
    (Y, "  y = matmul(x, w)\n", "E104: unknown function `matmul`", "einsum(a, b -> [dims])", Y),
    (Y, "  y = torch.matmul(x, w)\n", "E113: no module `torch`", "einsum(a, b -> [dims])", Y),
    (Y, '  y = einsum("bi,ic->bc", x, w)\n', "E001: expected an expression", "einsum(a, b -> [dims])", Y),
    (Y, "  y = einsum(x, w)\n", "E215: `einsum` needs", "-> [batch, classes]", Y),
    (Y, "  y = einsum(x, w -> [batch, clases])\n", "E103: unknown dimension `clases`", "classes", Y),
    (Y, "  y = einsum(x, W -> [batch, classes])\n", "E101: unknown value `W`", "did you mean `w`?", Y),
    (Y, "  y = nn.dense(x, 3)\n", "E203: `nn.dense` takes 1 argument", "nn.dense[d_out = classes](x)",
     "  y = nn.dense[d_out = classes](x) + einsum(x, w -> [batch, classes])\n"),
    (Y, "  y = nn.Linear(6, 3)(x)\n", "E001: the result of a call", "nn.dense[d_out = classes](x)",
     "  y = nn.dense[d_out = classes](x) + einsum(x, w -> [batch, classes])\n"),
    (Y, f"  y = softmax({RIGHT}, classes)\n", "E104: unknown function `softmax`", "nn.softmax",
     f"  y = nn.softmax({RIGHT}, classes)\n"),
    (Y, f"  y = nn.layernorm({RIGHT})\n", "E104: module `nn` has no function", "nn.layer_norm",
     f"  y = nn.layer_norm({RIGHT})\n"),
    (Y, f"  y = np.tanh({RIGHT})\n", "E113: no module `np`", "tanh(x)", f"  y = tanh({RIGHT})\n"),
    (Y, f"{Y}  z = y.T\n", "E101: `y` has no `T`", "transpose(x -> [classes, batch])",
     f"{Y}  z = transpose(y -> [classes, batch])\n"),
    (Y, f"{Y}  z = y[0]\n", "E001: a tensor has no `[...]`", "gather(y, ids, batch)", f"{Y}  z = gather(y, 0, batch)\n"),
    (Y, f"{Y}  z = y.reshape(batch, classes)\n", "E104: `y` is a value", "reshape(x -> [dims])",
     f"{Y}  z = reshape(y -> [batch, classes])\n"),
    (Y, f"{Y}  z = sum(y, axis = 1)\n", "E111: `sum` has no argument `axis`", "over = [dims]",
     f"{Y}  z = sum(y, over = [classes])\n"),
    (Y, f"{Y}  z = mean(y, -1)\n", "E203: `mean` takes 1 argument", "over = [dims]", f"{Y}  z = mean(y, over = [classes])\n"),
    (Y, f"{Y}  z = zeros((batch, io))\n", "E204: expected dimensions", "[batch, io]", f"{Y}  z = zeros([batch, io])\n"),
    (Y, f"{Y}  z = zeros(batch, io)\n", "E203: `zeros` takes 1 argument", "zeros([dims])", f"{Y}  z = zeros([batch, io])\n"),
    (Y, f"{Y}  z = cast(y, float16)\n", "E211: unknown dtype `float16`", "`f16`", f"{Y}  z = cast(y, f16)\n"),
    (Y, f"{Y}  z = y.astype(bf16)\n", "E104: `y` is a value", "cast(x, f32)", f"{Y}  z = cast(y, bf16)\n"),
    (Y, f"{Y}  z = max(y, 0)\n", "E203: `max` takes 1 argument", "maximum(x, y)", f"{Y}  z = maximum(y, 0)\n"),
    (Y, f"{Y}  z = maximum(y)\n", "E203: `maximum` takes 2", "max(x)", f"{Y}  z = max(y)\n"),
    (Y, f"{Y}  z = y + labels\n", "E202: operands are f32 and i32", "cast(x, dtype)", f"{Y}  z = y + cast(labels, f32)\n"),
    (Y, f"{Y}  z = where(y > 0, y)\n", "E203: `where` takes 3", "where(condition, x, y)", f"{Y}  z = where(y > 0, y, 0)\n"),
    (Y, f"{Y}  z = nn.rms_norm(y, classes, batch)\n", "E204: `epsilon` of `nn.rms_norm` is a number", "epsilon = batch",
     f"{Y}  z = nn.rms_norm(y, classes, epsilon = batch)\n"),
    (Y, f"{Y}  z = y^2\n", "E004: unexpected character `^`", "`**`", f"{Y}  z = y ** 2\n"),
    (Y, f"{Y}  z = y if training else 0\n", "E001: there is no `if`", "where(condition, x, y)",
     f"{Y}  z = where(training, y, 0)\n"),
    (Y, f"{Y}  z = losses.mean_square(y, y)\n", "E104: module `losses` has no function", "losses.mean_squared",
     f"{Y}  z = losses.mean_squared_error(y, y)\n"),
    # statements of other languages
    (Y, f"  let{Y}", "E001: there is no `let`", "the name alone", Y),
    (Y, Y.replace("=", ":=", 1), "E001: there is no `:=`", Y.strip(), Y),
    (Y, f"{Y}  y += 1\n", "E001: there is no `+=`", "y = y + 1", f"{Y}  y = y + 1\n"),
    (Y, f"{Y}  print(y)\n", "E001: there is no `print`", "watch x", f"{Y}  watch y\n"),
    (Y, f"  // a comment\n{Y}", "E001: expected a statement", "`#`", f"  # a comment\n{Y}"),
    (Y, "  for i in range(3):\n", "E001: there is no `for`", "repeat layers", f"{Y}  repeat classes {{ y = y + y }}\n"),
    (Y, f"{Y}  z = True\n", "E101: unknown value `True`", "`true`", f"{Y}  z = where(true, y, 0)\n"),
    (Y, f"{Y}  y.relu()\n", "E001: expected a statement", "y = relu(y)", f"{Y}  z = maximum(y, 0)\n"),
    ("import nn\n", "from nn import dense\n", "E001: there is no `from`", "import nn", "import nn\n"),
    ("import nn\n", "import torch.nn as nn\n", "E001: `import` takes the name", "import nn", "import nn\n"),
    ("import nn\n", "use nn\n", "E001: there is no `use`", "import nn", "import nn\n"),
    ("import nn\n", "import n\n", "E119: there is no module `n`", "nn", "import nn\n"),
    # declarations
    (DIM, "batch = 4", "E001: expected a declaration", DIM, DIM),
    (DIM, "const batch = 4", "E001: there is no `const`", DIM, DIM),
    (DIM, "dim batch: 4", "E001: expected `=`, found `:`", "`=`", DIM),
    (DIM, "dim batch, length = 4, 3", "E001: expected `=`, found `,`", "a line of its own", f"{DIM}\ndim length = 3"),
    (DIM, "dim batch = 2^2", "E004: unexpected character `^`", "`**`", DIM),
    (LINE, "mesh line = [2]", "E001: expected a mesh axis", "[rows: 2, cols: 4]", LINE),
    (LINE, "mesh line = (all: 2)", "E001: expected `[`", "`[`", LINE),
    (LINE, "mesh line = {all: 2}", "E001: expected `[`", "`[`", LINE),
    (LINE, "mesh line = [all = 2]", "E001: expected `:`", "`:`", LINE),
    (DATA, "layout data = { batch: all }", "E307: layout `data` does not say", "layout data on line", DATA),
    (DATA, "layout data on lin = { batch: all }", "E307: unknown mesh `lin`", "`line`", DATA),
    (DATA, "layout data on line = { bach: all }", "E303: unknown dimension `bach`", "`batch`", DATA),
    (DATA, "layout data on line = { batch: al }", "E304: mesh `line` has no axis `al`", "`all`", DATA),
    (DATA, "layout data on line = { all: batch }", "E303: `all` is a mesh axis", "batch: all", DATA),
    (DATA, "layout data on line = { batch -> all }", "E001: expected `:`", "`:`", DATA),
    (DATA, "layout data on line = { batch = all }", "E001: expected `:`", "`:`", DATA),
    (DATA, "layout data on line = [ batch: all ]", "E001: expected `{`", "`{`", DATA),
    (DATA, "layout data on line = { classes: all }", "E302: `classes` has size 3", "split another dimension", DATA),
    (DATA, "layout data on line = { batch: all, io: all }", "E301: layout `data` splits two", "keep one of the two", DATA),
    (HEAD, "model small(x, labels) {", "E001: expected `:`", "x: [dims]", HEAD),
    (HEAD, HEAD.replace("f32", "float", 1), "E211: unknown dtype `float`", "`f32`", HEAD),
    (HEAD, HEAD.replace("f32[", "f32(").replace("io]", "io)"), "E001: expected `[`", "`[`", HEAD),
    (HEAD, HEAD.replace("[batch, io]", "[4, io]"), "E001: expected a dimension", "dim d = 4", HEAD),
    (HEAD, HEAD.replace(" {", " -> f32[] {"), "E001: expected `{`, found `->`", "`return` has them", HEAD),
    (HEAD, HEAD.replace("i32", "f32"), "E202: expected an integer tensor", "cast(x, dtype)", HEAD),
    (W, "param w: f32[io, classes]", "E001: parameter `w` has no initial value", "normal(stddev = 0.02)", W),
    (W, "param w = normal(stddev = 0.5)", "E001: parameter `w` has no type", "param w: [dims]", W),
    (W, W.replace("stddev", "std"), "E217: `normal` has no number `std`", "`stddev`", W),
    (W, W.replace("normal(stddev = 0.5)", "0.5"), "E217: expected an initializer", "constant(0.5)",
     W.replace("normal(stddev = 0.5)", "constant(0.5)")),
    (W, W.replace("param", "parameter"), "E001: expected", "`param`", W),
    (W, W.removeprefix("param "), "E001: expected", "param w: [dims]", W),
    # training
    (BY, "optimizer = sgd", "E405: expected an optimizer", "sgd(learning_rate = 0.1)", BY),
    (BY, "optimizer = sgd(lr = 0.1)", "E405: `sgd` has no hyperparameter `lr`", "learning_rate", BY),
    (BY, "optimizer = SGD(learning_rate = 0.1)", "E404: unknown optimizer `SGD`", "`sgd`", BY),
    (BY, "optimizer = optax.adam(0.1)", "E113: no module `optax`", "adam(learning_rate = 0.1)", BY.replace("sgd", "adam")),
    (BY, "optimizer: sgd(learning_rate = 0.1)", "E001: expected `=`", "`=`", BY),
    (BY, BY.replace("0.1)", "0.1, momentum = 0.9)"), "E405: `sgd` has no hyperparameter `momentum`", "momentum(",
     "optimizer = momentum(learning_rate = 0.1, momentum = 0.9)"),
    (BY, "learning_rate = 0.1", "E012: a train block has no entry", "adam(learning_rate = 0.1)", BY.replace("sgd", "adam")),
    (BY, f"{BY}\n  batch_size = 3", "E012: a train block has no entry", "dim batch = 32", BY),
    (BY, f"{BY}\n  epochs = 3", "E012: a train block has no entry", "--epochs 3", BY),
    (BY, f"{BY}\n  clip_norm = 1.0", "E012: a train block has no entry", "`clip`", f"{BY}\n  clip = 1.0"),
    ("minimize loss", "minimize los", "E401: model `small` returns no `los`", "`loss`", "minimize loss"),
    ("minimize loss", "maximize loss", "E001: expected", "`minimize`", "minimize loss"),
    ("minimize loss", "minimize y", "E402: `y` is f32[batch, classes]", "`mean`", "minimize loss"),
    ("minimize loss", "loss = loss", "E012: a train block has no entry", "minimize loss", "minimize loss"),
    ("train small", "training small", "E001: expected a declaration", "`train`", "train small"),
    ("train small", "train smal", "E106: unknown model `smal`", "`small`", "train small"),
    ("return y, loss", "return (y, loss)", "E001: expected `)`", "return y, loss", "return y, loss"),
    ("  return y, loss\n", "", "E108: model `small` returns nothing", "`return`", "  return y, loss\n"),
)  # fmt: skip

ON_THE_COMMAND_LINE: tuple[tuple[str, str, str, str], ...] = (
    ("chekc model.mtf", "there is no command `chekc`", "`check`", "check model.mtf"),
    ("lint model.mtf", "there is no command `lint`", "`check`", "check model.mtf"),
    ("price model.mtf", "there is no command `price`", "`cost`", "cost model.mtf"),
    ("check model", "cannot read model", "model.mtf", "check model.mtf"),
    ("check modl.mtf", "cannot read modl.mtf", "model.mtf", "check model.mtf"),
    ("check model.py", "cannot read model.py", "model.mtf", "check model.mtf"),
    ("check mine.py", "mine.py has Python", "`mine:step --args mine:example`", "cost mine:step --args mine:example"),
    ("cost mine:step mine:example", "unexpected mine:example", "the name of an option is missing before it",
     "cost mine:step --args mine:example"),
    ("search model.mtf --gpus 8", "there is no option --gpus", "--devices 8", "search model.mtf --devices 2 --budget 0.1"),
    ("check foldr/model.mtf", "cannot read foldr/model.mtf", "folder/model.mtf", "check folder/model.mtf"),
    ("cost model.mtf --layot both", "there is no option --layot", "--layout", "cost model.mtf --layout both"),
    ("cost model.mtf --layout bot", "E311]: unknown layout `bot`", "`both`", "cost model.mtf --layout both"),
    ("cost model.mtf --json", "there is no option --json", "--format json", "cost model.mtf --format json"),
    ("cost model.mtf --batch-size 8", "there is no option --batch-size", "--dim batch=32", "cost model.mtf --dim batch=32"),
    ("check model.mtf --lr 0.1", "there is no option --lr", "--set optimizer.learning_rate=0.1",
     "check model.mtf --set optimizer.learning_rate=0.1"),
    ("cost model.mtf --target h100", "there is no option --target", "mtfc simulate", "simulate model.mtf --target h100"),
    ("check model.mtf --format yaml", "there is no value `yaml`", "json", "check model.mtf --format json"),
    ("check model.mtf --mesh gird", "E307]: unknown mesh `gird`", "`grid`", "check model.mtf --mesh grid"),
    ("check model.mtf --mesh 2x3", "E001]: expected a mesh axis", "[rows: 2, cols: 4]",
     "check model.mtf --mesh rows:2,cols:3"),
    ("check model.mtf --layout batch:rows", "E307]: these rules need a mesh", "--mesh grid",
     "check model.mtf --layout batch:rows --mesh grid"),
    ("check model.mtf --layout batch=all --mesh line", "E001]: expected `:`", "`:`",
     "check model.mtf --layout batch:all --mesh line"),
    ("check model.mtf --dim bach=8", "E103]: unknown dimension `bach`", "`batch`", "check model.mtf --dim batch=8"),
    ("check model.mtf --dim batch", "expected NAME=SIZE", "batch=64", "check model.mtf --dim batch=64"),
    ("check model.mtf --dim batch=5", "E302]: `batch` has size 5", "multiple of 2", "check model.mtf --dim batch=6"),
    ("check model.mtf --model smal", "E106]: unknown model `smal`", "`small`", "check model.mtf --model small"),
    ("check model.mtf --set learning_rate=1", "E012]: a train block", "optimizer.learning_rate",
     "check model.mtf --set optimizer.learning_rate=1"),
    ("check model.mtf --set optimizer.lr=1", "E405]: `sgd` has no hyperparameter", "learning_rate",
     "check model.mtf --set optimizer.learning_rate=1"),
    ("compile model.mtf --emit jxa", "there is no value `jxa`", "`jax`", "compile model.mtf --emit jax"),
    ("compile model.mtf --stop-after dec", "unknown pass `dec`", "`dce`", "compile model.mtf --stop-after dce"),
    ("compile model.mtf --passes cse,dec", "unknown pass `dec`", "`dce`", "compile model.mtf --stop-after dce"),
    ("simulate model.mtf --target H10", "E313]: unknown hardware `H10`", "`h100`", "simulate model.mtf --target h100"),
    ("run model.mtf --params parms.npz", "E501]: cannot read arrays", "params.npz", "run model.mtf --params params.npz"),
    ("run model.mtf --data dat/x.npz", "E501]: cannot read arrays", "data/x.npz", "run model.mtf --data data/x.npz"),
    ("search model.mtf -o best.json", "the result is a FILE", "-o best.mtf",
     "search model.mtf --devices 2 --budget 0.1 -o best.mtf"),
    ("search mine:step --args mine:example --devices 2 -o best.mtf", "a plan of a function", "-o best.json",
     "search mine:step --args mine:example --devices 2 --budget 0.1 -o best.json"),
    ("help tutoral", "no help about `tutoral`", "`tutorial`", "help tutorial"),
)  # fmt: skip

IN_PYTHON: tuple[tuple[str, str, str, str], ...] = (
    ("from_jax(f, [1, 2], x)", "argument w is [1, 2], a list", "jnp.asarray([1, 2])", "from_jax(f, jnp.ones((16, 32)), x)"),
    ("from_jax(f, (16, 32), (8, 16))", "argument w is (16, 32), a tuple", "jax.ShapeDtypeStruct((16, 32), jnp.float32)",
     "from_jax(f, jax.ShapeDtypeStruct((16, 32), jnp.float32), x)"),
    ("from_jax(f, 'w', x)", "argument w has a leaf of type str", "functools.partial", "from_jax(functools.partial(f, w), x)"),
    ("from_jax(f)", "the example arguments do not fit", "'w'", "from_jax(f, w, x)"),
    ("from_jax(f(w, x), w, x)", "`from_jax` takes a function of JAX first", "function", "from_jax(f, w, x)"),
    ("from_jax(f, w, x, names=['batch'])", "`names` are texts by texts", "{'ids': 'batch length'}",
     "from_jax(f, w, x, names={'x': 'batch io'})"),
    ("from_jax(f, w, x, names={'y': 'batch io'})", "matches no argument", "w, x", "from_jax(f, w, x, names={'x': 'batch io'})"),
    ("from_jax(f, w, x, parameters='w')", "`parameters` are numbers", "(0,)", "from_jax(f, w, x, parameters=(0,))"),
    ("from_jax(lambda w, x: w if x.sum() > 0 else -w, w, x)", "depends on the values of arrays", "jnp.where",
     "from_jax(lambda w, x: jnp.where(x.sum() > 0, w, -w), w, x)"),
    ("from_jax(f, (w, x))", "the example arguments do not fit", "`from_jax(f, x, y)`", "from_jax(f, w, x)"),
    ("from_jax(f, args=(w, x))", "the example arguments do not fit", "as in a call", "from_jax(f, w, x)"),
    ("from_jax(lambda w, x: np.tanh(w), w, x)", "depends on the values of arrays", "`jnp` in place of NumPy",
     "from_jax(lambda w, x: jnp.tanh(w), w, x)"),
    ("p.plan({'batch': 'data'})", "these rules need a mesh", "mesh='data:2'", "p.plan({'batch': 'data'}, mesh='data:2')"),
    ("p.plan('fsdp', {'data': 8})", "unknown layout `fsdp`", "params: { *: data }; optimizer: { *: data }",
     "p.plan('batch: data; params: { *: data }; optimizer: { *: data }', {'data': 8})"),
    ("p.plan({'params': 'data'}, {'data': 8})", "unknown dimension `params`", "params: { *: AXIS }",
     "p.plan({'params': {'*': 'data'}}, {'data': 8})"),
    ("p.search(8, memory='10B', budget=0.1)", "a device has 10 B", "the least that was seen is",
     "p.search(8, memory='1GiB', budget=0.1)"),
    ("p.plan({'bach': 'data'}, {'data': 8})", "unknown dimension `bach`", "`batch`", "p.plan({'batch': 'data'}, {'data': 8})"),
    ("p.plan({'batch': 'dat'}, {'data': 8})", "has no axis `dat`", "`data`", "p.plan({'batch': 'data'}, {'data': 8})"),
    ("p.plan({'batch': 'data'}, 8)", "mesh=8 is neither", "{'rows': 2, 'cols': 4}",
     "p.plan({'batch': 'rows'}, {'rows': 2, 'cols': 4})"),
    ("p.plan({'batch': 'data'}, {'data': 3})", "cannot be split evenly", "multiple of 3",
     "p.plan({'batch': 'data'}, {'data': 4})"),
    ("p.plan(P('data'), {'data': 8})", "is neither text nor a mapping", "{'batch': 'rows'}",
     "p.plan({'batch': 'rows'}, {'rows': 8})"),
    ("p.plan({}, {'data': 8}, memory='10B')", "needs at least", "memory='6.51KiB'", "p.plan({}, {'data': 8}, memory='6.51KiB')"),
    ("p.plan({}, {'data': 8}, memory='1GG')", "expected a size such as 80GiB", "80GiB",
     "p.plan({}, {'data': 8}, memory='80GiB')"),
    ("p.search('8')", "`devices` is a whole number", "from 1 on", "p.search(8, budget=0.1)"),
    ("p.search(8, 'h10')", "unknown hardware `h10`", "`h100`", "p.search(8, 'h100', budget=0.1)"),
    ("plan.step(w)", "do not fit the function", "'x'", "plan.step(w, x)"),
    ("plan.step(w, z=x)", "do not fit the function", "'x'", "plan.step(w, x=x)"),
    ("plan.step(w, x, x)", "too many positional", "the function", "plan.step(w, x)"),
    ("plan.step(w, {'a': x})", "an array at x/a", "no array at x", "plan.step(w, x)"),
    ("plan.step(w, None)", "no array at x,", "structure", "plan.step(w, x)"),
    ("plan.step(w, x=1)", "x has shape ()", "(8, 16)", "plan.step(w, x=x)"),
    ("plan.step(w, x10)", "splits `batch` over data in 4 parts", "multiple of 4", "plan.step(w, x12)"),
    ("plan.step(gone, x)", "donated to an earlier call", "`plan.step`", "plan.step(w, x)"),
    ("plan.step(w, x.astype(int))", "array of int32", "convert it", "plan.step(w, x.astype(float))"),
    ("plan.apply(jnp.tanh)", "`apply` takes the function that was imported", "import the other one", "plan.apply(step)"),
    ("plan.simulate(8)", "target=8 is no path", "expected text", "plan.simulate('h100')"),
    ("mtfc.check(f)", "is no path of a .mtf file", "`mtfc.from_jax`", "mtfc.from_jax(f, w, x)"),
    ("plan.inspect('h100')", "here JAX finds 0 such devices", "cpu:4", "plan.inspect('cpu:4')"),
    ("plan.simulate('h10')", "unknown hardware `h10`", "`h100`", "plan.simulate('h100')"),
    ("plan.predicted_step", "the plan has no machine", "plan.simulate(target)", "plan.simulate('h100')"),
)  # fmt: skip
