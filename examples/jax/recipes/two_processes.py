"""Two processes of four devices each: every process makes its own rows of a batch, and a plan spans both.

Without arguments, the file starts both processes on this machine.
"""

import socket
import subprocess
import sys

import jax
import numpy as np
import optax

import mtfc

OPTIMIZER = optax.adam(1e-2)


def step(params, state, x, y):
    def loss(params):
        return ((jax.nn.relu(x @ params["fc1"]) @ params["fc2"] - y) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def batch(seed):
    x = np.random.default_rng(seed).standard_normal((32, 16)).astype("float32")
    return x, np.tanh(x[:, :8])


def init():
    random = np.random.default_rng(0)
    params = {"fc1": random.standard_normal((16, 32)) / 4, "fc2": random.standard_normal((32, 8)) / 6}
    params = {name: x.astype("float32") for name, x in params.items()}
    return params, OPTIMIZER.init(params)


def process(address, number):
    """Train in one of two processes, and print the loss."""
    jax.config.update("jax_num_cpu_devices", 4)  # virtual devices; leave it out on a real machine
    jax.distributed.initialize(address, num_processes=2, process_id=number)
    args = init()
    program = mtfc.from_jax(step, *args, *batch(0))
    plan = program.plan({"batch": "data", "hidden": "model"}, {"data": 4, "model": 2})
    planned, rows = plan.jit(step), slice(16 * number, 16 * number + 16)
    for seed in range(20):
        local = zip(plan.in_shardings[2:], batch(seed), strict=True)
        whole = [jax.make_array_from_process_local_data(sharding, x[rows]) for sharding, x in local]
        *args, loss = planned(*args, *whole)
    print(f"loss {loss:.6f} in process {number} of {jax.process_count()}, {jax.device_count()} devices")


def main():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, __file__, address]
    both = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in range(2)]
    texts = [each.communicate(timeout=120)[0] for each in both]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("loss")]
    print(*lines, sep="\n")
    return float(lines[0].split()[1])


def alone():
    """Return the loss of the same steps on one device."""
    args, run = init(), jax.jit(step)
    for seed in range(20):
        *args, loss = run(*args, *batch(seed))
    return float(loss)


if __name__ == "__main__":
    process(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 1 else main()
