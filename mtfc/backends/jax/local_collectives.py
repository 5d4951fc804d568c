"""Collectives that send nothing, for `mtfc run --without-collectives`: the time of a step without its communication.

This is how SoyBean measures communication (arXiv:1805.04170, section 6.2). Each function returns an array of the right shape,
made of the device's own data, so all numbers that follow are wrong. Barriers keep XLA from leaving out the computation of data
that would have been sent away.
"""

from typing import Any

from mtfc.backends.common.devices import import_jax


def local(source: str) -> str:
    """Return the text of a module without its collectives."""
    return source.replace("from jax import lax", f"from {__name__} import lax").replace(
        "@jax.shard_map(", "@jax.shard_map(check_vma=False, "
    )


class LocalCollectives:
    """`jax.lax` with collectives that send nothing. JAX then does not check along which axes values vary."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_jax().lax, name)

    def psum(self, x: Any, axes: Any) -> Any:
        return self.optimization_barrier(x)

    pmax = pmin = psum

    def pcast(self, x: Any, axes: Any, *, to: str) -> Any:
        return x

    def ppermute(self, x: Any, axes: Any, perm: Any) -> Any:
        return self.optimization_barrier(x)

    def all_gather(
        self, x: Any, axes: Any, *, axis: int = 0, tiled: bool = False, to: str = "varying"
    ) -> Any:
        """Repeat the device's part."""
        number = self.axis_size(axes)
        own = self.optimization_barrier(x)
        jnp = import_jax().numpy
        whole = jnp.concatenate([own] * number, axis) if tiled else jnp.stack([own] * number, axis)
        return self.optimization_barrier(whole)

    def psum_scatter(self, x: Any, axes: Any, *, scatter_dimension: int = 0, tiled: bool = False) -> Any:
        """Keep the first part."""
        number = self.axis_size(axes)
        terms = self.optimization_barrier(x)
        size = terms.shape[scatter_dimension] // number
        part = self.slice_in_dim(terms, 0, size, axis=scatter_dimension)
        return part if tiled else part.squeeze(scatter_dimension)

    def all_to_all(self, x: Any, axes: Any, *, split_axis: int, concat_axis: int, tiled: bool = False) -> Any:
        """Keep all parts, one after the other in the other dimension."""
        assert tiled, "generated modules exchange tiles"
        number = self.axis_size(axes)
        jnp = import_jax().numpy
        parts = jnp.split(self.optimization_barrier(x), number, split_axis)
        return self.optimization_barrier(jnp.concatenate(parts, concat_axis))


lax = LocalCollectives()
