"""Each collective of shard_map once, on a mesh of 2 x 4 devices, bfloat16 among them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map

MESH = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))


def exchange(x, y):
    """x: bfloat16[16, 8] of each device, y: float32[8, 8]."""
    total = jax.lax.psum(x, "a")
    gathered = jax.lax.all_gather(y, "b", tiled=True)
    scattered = jax.lax.psum_scatter(gathered, ("a", "b"), tiled=True)
    swapped = jax.lax.all_to_all(x, "b", 0, 0, tiled=True)
    shifted = jax.lax.ppermute(y, "b", [(i, (i + 1) % 4) for i in range(4)])
    return total, scattered, swapped, shifted


specs = (P(("a", "b")), P(("a", "b")))
run = jax.jit(
    shard_map(
        exchange,
        mesh=MESH,
        in_specs=specs,
        out_specs=(P(None, "b"), P(("a", "b")), P("a", "b"), P("a", "b")),
    )
)
x = jnp.ones((8 * 16, 8), jnp.bfloat16)
y = jnp.ones((8 * 8, 8), jnp.float32)
for _ in range(2):
    jax.block_until_ready(run(x, y))
