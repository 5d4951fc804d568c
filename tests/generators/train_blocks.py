"""Random `train` blocks of one small model: optimizer, clip, average, micro-batches, loss scale, schedule, groups, precision."""

from random import Random

MODEL = """
import schedules

dim batch = 4
dim io = 2
dim hidden = 4
dim heads = 2
dim layers = 2
mesh grid = [rows: 2, cols: 2]
layout alone   on grid = {}
layout data    on grid = { batch: rows }
layout split   on grid = { batch: rows, hidden: cols }
layout stored  on grid = { batch: rows, optimizer: { hidden: (rows, cols) } }
layout sharded on grid = { batch: (rows, cols), params: { hidden: cols }, optimizer: { hidden: cols, io: rows } }

optimizer adagrad(learning_rate, epsilon = 1e-7) (p, g) {
  state sums = full([], 0.1, dtype = any)
  sums = sums + mean(square(g))
  p = p - learning_rate * g * rsqrt(sums + epsilon)
}

fn halved(step, start) -> [] {
  share = 1 / (1 + step)
  return start * share
}

model net(x: [batch, io], y: [batch]) {
  state seen: i32[] = 0
  update seen = seen + 1
  param w: [heads, io, hidden] = normal(stddev = 0.5)
  param bias: [hidden] = normal(stddev = 0.1)
  param unused: [io] = ones()
  h = sum(tanh(einsum(x, w -> [batch, heads, hidden]) + bias), over = heads)
  repeat layers {
    param v: [hidden, io] = normal(stddev = 0.5)
    param c: [io] = normal(stddev = 0.5)
    h = h + einsum(tanh(einsum(h, v -> [batch, io]) + c), v -> [batch, hidden])
  }
  param scale: [] = ones()
  loss = mean(square(scale * mean(h, over = hidden) - y)) + 0.0 * sum(unused)
  return loss
}

train net {
  minimize loss
  report grad_norm
ENTRIES
}
"""
LAYOUTS = ("alone", "data", "split", "stored", "sharded")

SCHEDULES = (
    "linear_warmup(step, peak = {a}, warmup = 2)",
    "warmup_rsqrt(step, {a}, 2)",
    "cosine(step, peak = {a}, warmup = 2, steps = 6, end = 0.001)",
    "cosine(step, {a}, warmup = 0, steps = 4)",
    "step_decay(step, {a}, factor = 0.5, every = 2)",
    "exponential_decay(step, start = {a}, factor = 0.9, every = 5)",
    "constant({a})",
)

HYPERS = {
    "sgd": (),
    "sgdw": ("weight_decay",),
    "momentum": ("momentum",),
    "nesterov": ("momentum",),
    "adam": ("beta1", "beta2", "epsilon"),
    "adamw": ("beta1", "beta2", "epsilon", "weight_decay"),
    "adafactor": ("decay", "clip", "epsilon1", "epsilon2"),
}

RANGES = {
    "momentum": (0.1, 0.95), "beta1": (0.1, 0.95), "beta2": (0.5, 0.999), "epsilon": (1e-8, 0.1), "weight_decay": (0.0, 0.3),
    "decay": (0.3, 0.9), "clip": (0.3, 2.0), "epsilon1": (1e-30, 1e-3), "epsilon2": (1e-4, 0.1),
}  # fmt: skip


def optimizer(random: Random) -> str:
    """Draw a call of an optimizer of the library."""
    name = random.choice([*HYPERS])
    rate = f"{random.uniform(0.01, 0.2):.4f}"
    if random.random() < 0.5:
        rate = f"schedules.{random.choice(SCHEDULES)}".format(a=rate)
    elif random.random() < 0.2:
        rate = f"halved(step, {rate})"
    chosen = [each for each in HYPERS[name] if random.random() < 0.6]
    drawn = [f"{each} = {random.uniform(*RANGES[each]):.4g}" for each in chosen]
    return f"{name}({', '.join([rate, *drawn])})"


def train_entries(random: Random) -> str:
    """Draw the entries of a `train` block."""
    found = [f"optimizer = {optimizer(random)}"]
    if random.random() < 0.5:
        found.append(f'optimizer for "*.c", "bias" = {optimizer(random)}')
    if random.random() < 0.2:
        found.append('optimizer for "scale" = adagrad(0.1)')
    if random.random() < 0.3:
        found.append(f'frozen "{random.choice(["scale", "layers.v", "bi*"])}"')
    if random.random() < 0.5:
        found.append(f"clip = {random.choice([0.01, 0.3, 1.0, 100.0])}")
    if random.random() < 0.4:
        found.append(f"average = {random.choice([0.5, 0.9, 0.999])}")
    if random.random() < 0.5:
        found.append(f"accumulate = {random.choice([2, 3, 4])}")
    scale = random.choice([None, None, "dynamic", "1024", "1000"])
    compute = random.choice(["f32", "f32", "bf16"])
    if scale or compute != "f32":
        more = f", loss_scale: {scale}" if scale else ""
        found.append(f"precision = {{ params: f32, compute: {compute}{more} }}")
    if scale:
        found.append("report loss_scale")
    return "\n".join(f"  {each}" for each in found)


def train_source(entries: str) -> str:
    return MODEL.replace("ENTRIES", entries)
