"""Training steps of L layers (scan) of a sharded MLP, data x tensor parallel, with momentum; python jax_train.py LAYERS HOW."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, HOW = int(sys.argv[1]), sys.argv[2:]
WIDTH, HIDDEN, BATCH = 64, 256, 32
MESH = Mesh(np.array(jax.devices()).reshape(-1, 2), ("dp", "tp"))


def place(value, *axes):
    return jax.device_put(value, NamedSharding(MESH, P(*axes)))


def forward(weights, x):
    def layer(h, w):
        with jax.named_scope("block"):
            return h + jnp.tanh(h @ w["up"]) @ w["down"], None

    return jax.lax.scan(layer, x, weights)[0]


def loss_of(weights, x):
    return jnp.mean(forward(weights, x).astype(jnp.float32) ** 2)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(weights, momentum, x):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum), momentum, loss


key = jax.random.key(0)
weights = {
    "up": place(
        0.1 * jax.random.normal(key, (LAYERS, WIDTH, HIDDEN), jnp.bfloat16), None, None, "tp"
    ),
    "down": place(0.1 * jax.random.normal(key, (LAYERS, HIDDEN, WIDTH), jnp.bfloat16), None, "tp"),
}
momentum = jax.tree.map(jnp.zeros_like, weights)
predict = jax.jit(forward)
gradients_of = jax.jit(jax.value_and_grad(loss_of))
update = jax.jit(lambda w, g: jax.tree.map(lambda a, b: a - 0.1 * b, w, g))
if "compiled" in HOW:
    train_step = train_step.lower(
        weights,
        momentum,
        jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.bfloat16, sharding=NamedSharding(MESH, P("dp"))),
    ).compile()
for number in range(3):
    x = place(jnp.ones((BATCH, WIDTH), jnp.bfloat16), "dp")
    if "infer" in HOW:
        sys.stdout.write(f"{float(predict(weights, x).sum())}\n")
        continue
    if "parts" in HOW:
        loss, gradients = gradients_of(weights, x)
        weights = update(weights, gradients)
    else:
        weights, momentum, loss = train_step(weights, momentum, x)
    sys.stdout.write(f"{float(loss)}\n")
    if "marked" in HOW:
        import trnprof

        with trnprof.step(f"batch {number}"):
            predict(weights, x)
