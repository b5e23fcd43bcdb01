"""Time fedjax: federated averaging on the CPU, clients through `for_each_client` under jit."""

import os
from importlib.metadata import version

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
from timed_settings import BATCH_SIZE, PERIOD, STEP_SIZE, Clock, Setting, client_data, main


def measure(setting: Setting, clock: Clock, threads: int) -> str:
    scores = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP(setting.widths[1:])(x)))

    def loss(params: hk.Params, batch: dict[str, jax.Array], rng: jax.Array) -> jax.Array:
        log_probabilities = jax.nn.log_softmax(scores.apply(params, batch["x"]))
        return -jnp.mean(jnp.take_along_axis(log_probabilities, batch["y"][:, None], 1))

    data = []
    for i in range(setting.n):
        inputs, labels = client_data(setting, i)
        data.append(fedjax.ClientDataset({"x": inputs, "y": labels.astype("int32")}))
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(STEP_SIZE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(BATCH_SIZE, num_epochs=None, num_steps=PERIOD, drop_remainder=True),
    )
    key = jax.random.PRNGKey(0)
    state = algorithm.init(scores.init(key, jnp.zeros((1, *setting.shape))))
    keys = list(jax.random.split(key, setting.n))
    clients = [(str(i).encode(), data[i], keys[i]) for i in range(setting.n)]
    with fedjax.for_each_client_backend("jit"):
        while not clock.done:
            state, _ = algorithm.apply(state, clients)
            jax.block_until_ready(state.params)
            clock.tick()
    return f"fedjax {version('fedjax')}, jax {jax.__version__}, FedAvg, jit backend"


if __name__ == "__main__":
    main("fedjax", measure)
