"""JAX's own example of several processes: initialize() without arguments, and a sum over all of them."""

import jax

jax.distributed.initialize()
values = jax.numpy.ones(jax.local_device_count())
total = jax.pmap(lambda value: jax.lax.psum(value, "i"), axis_name="i")(values)
assert total[0] == jax.device_count()
if jax.process_index() == 0:
    print("world", jax.process_count(), "devices", jax.device_count())
