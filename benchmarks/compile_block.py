"""What the compilation of a block of steps costs, beside that of one batched value and gradient of the same target.

Every figure is the median of several fresh processes, tracing and XLA's own time together, in seconds. A target of 200
operations stands for a model, one of a few for no model at all: its block is what every run pays. `copies`: how often
the target is written into the block. With the path of another `src` both are measured in turn, and `ratio` compares
them. `--steps` adds the run time of a step of all chains in microseconds, on a cheap mixture of two Gaussians.

    python benchmarks/compile_block.py [--against /path/to/other/src] [--steps]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).parent.parent / "src"
MARK, MARK_TEXT = 0.73908513321516064, "0.7390851332"
"""A number that stands in the target once, and nowhere else."""

CHAINS, CAPACITY, LENGTH = 16, 16, 100
OPERATIONS = 200


def logdensity_of(num_operations):
    """A density of about so many operations, each of which needs the one before."""
    import jax.numpy as jnp

    def logdensity(x):
        y = x
        for n in range(num_operations // 2):
            y = jnp.sin(y) + (1 + n) * 0.01 if n % 2 else y * (1 + 0.001 * n) - 0.1
        return -0.5 * jnp.sum((x - MARK) ** 2) + 1e-3 * jnp.sum(y)

    return logdensity


def mixture_of(dim):
    """Two Gaussians of unit width, and their charts."""
    import jax.numpy as jnp

    means = np.stack([np.zeros(dim), np.full(dim, 8 / dim**0.5)])

    def logdensity(x):
        return jnp.logaddexp(*(-0.5 * jnp.sum((x - mean) ** 2) for mean in means))

    return logdensity, means


def setting(dim, logdensity, locations, **settings):
    """The compiled function of the default cycle, and its arguments."""
    import jax
    import jax.numpy as jnp

    import whmc

    try:
        from whmc.kernels import block
        from whmc.kernels.settings import arrays, default_kernel, with_settings
    except ImportError:  # the first version of whmc
        from whmc.run.rounds import arrays, default_kernel, with_settings

        from whmc.run import block
    target = whmc.Target(logdensity, dim=dim)
    scales = np.broadcast_to(np.eye(dim), (len(locations), dim, dim))
    library = whmc.ModeLibrary.from_charts(locations, scales, capacity=CAPACITY)
    positions = np.resize(locations, (CHAINS, dim))
    kernel = with_settings(arrays(default_kernel()), **settings)
    numbers = jnp.asarray(LENGTH), jnp.ones(CHAINS, bool), jnp.asarray(False)
    if not hasattr(block, "compute_block"):
        states, _ = block.start_chains(target, library, jnp.asarray(positions))
        key, first = jax.random.key(0), jnp.zeros(CHAINS, int)
        return partial(block.run_block, length=LENGTH), (kernel, target, library, states, key, first, *numbers)
    from whmc.kernels.base import place_all
    from whmc.kernels.flight import state_packing

    noise = block.draw_block(kernel, library, jax.random.key(0), np.zeros(CHAINS, int), LENGTH)
    found = jax.vmap(target.evaluate)(positions)
    states = place_all(positions, np.asarray(found.logdensity), np.asarray(found.score), library)
    rows = state_packing(library, CHAINS).pack(states)
    return block.compute_block, (kernel, target, library, rows, noise, *numbers)


def compile_seconds(num_operations):
    """Of a block without a model, then of a model's value and gradient and of its block, all in one process."""
    import jax

    jax.jit(lambda x: x + 1).lower(0.0).compile()  # what the first compilation of a process costs besides

    def seconds(function, *arguments):
        began = time.perf_counter()
        lowered = jax.jit(function).lower(*arguments)
        lowered.compile()
        return time.perf_counter() - began, lowered

    at = np.array([[0.0, 0.0], [5.0, 5.0]])
    nothing, model = logdensity_of(0), logdensity_of(num_operations)
    alone, _ = seconds(*_called(setting(2, nothing, at)))
    raw, _ = seconds(jax.vmap(jax.value_and_grad(model)), np.zeros((CHAINS, 2)))
    block, lowered = seconds(*_called(setting(2, model, at)))
    share = (block - alone) / raw
    return {"alone": alone, "raw": raw, "block": block, "share": share, "copies": lowered.as_text().count(MARK_TEXT)}


def _called(found):
    function, arguments = found
    return function, *arguments


def step_microseconds(dim, throat):
    """Of all chains, the quickest of many blocks."""
    import jax

    logdensity, means = mixture_of(dim)
    block, arguments = setting(dim, logdensity, means, throat=throat, num_steps=3)
    times = []
    for _ in range(60):
        began = time.perf_counter()
        jax.block_until_ready(block(*arguments))
        times.append(time.perf_counter() - began)
    return {"step": min(times) / LENGTH * 1e6}


def measure(source, *task):
    """A task in a fresh process that imports whmc from this path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    environment |= {"PYTHONPATH": str(source), "JAX_ENABLE_X64": "1"}
    command = [sys.executable, __file__, "--task", *map(str, task)]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def compare(sources, repeats, *task):
    """The medians of a task for each source, measured in turn."""
    rows = [[measure(source, *task) for source in sources] for _ in range(repeats)]
    return [
        {name: float(np.median([row[n][name] for row in rows])) for name in rows[0][n]} for n in range(len(sources))
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another src directory, measured in turn")
    parser.add_argument("--steps", action="store_true", help="also the run time of steps")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--task", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        name, first, second = options.task
        print(
            json.dumps(compile_seconds(int(first)) if name == "compile" else step_microseconds(int(first), int(second)))
        )
        return
    sources = [SOURCE] if options.against is None else [SOURCE, options.against.resolve()]
    rows = compare(sources, options.repeats, "compile", OPERATIONS, 0)
    for source, row in zip(sources, rows, strict=True):
        print(
            f"a block without a model {row['alone']:.2f} s; a model of {OPERATIONS} operations: value and gradient "
            f"{row['raw']:.2f} s, block {row['block']:.2f} s, {row['copies']:.0f} copies, so it costs "
            f"{row['share']:.2f} of its own compilation   {source}",
            flush=True,
        )
    if len(sources) == 2:
        print(f"ratio of the blocks without a model: {rows[0]['alone'] / rows[1]['alone']:.2f}")
    for dim in (2, 10, 50) if options.steps else ():
        for throat in (0, 4):
            rows = compare(sources, options.repeats, "step", dim, throat)
            text = "   ".join(f"{row['step']:8.1f} µs" for row in rows)
            print(f"D = {dim:3d}, throat {throat}: a step of {CHAINS} chains takes {text}", flush=True)


if __name__ == "__main__":
    main()
