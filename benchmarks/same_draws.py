"""One seed, the same draws, whatever else the machine does: nothing in a run is decided by a clock.

`whmc.sample(target, seed=0)` in a process of its own, first on an idle machine, then with a busy process beside it on
every core: for a density that costs next to nothing, one that costs as much as an ODE, and one in NumPy. Promised: all
draws and all gradients are the same, to the last bit. Seconds are told beside them.
"""

import hashlib
import json
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import whmc

DRAWS = 200
NUM_STEPS = 400


def cheap():
    """Two Gaussians."""

    def logdensity(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x + 4) ** 2), -0.5 * jnp.sum((x - 4) ** 2) / 0.25)

    return whmc.Target(logdensity, dim=3, starts=(-10.0, 10.0))


def costly():
    """An oscillator whose frequency is known but for its sign, by steps of Euler."""
    times = 6.0 / NUM_STEPS

    def path(x):
        def step(state, _):
            place, speed = state
            speed = speed - times * x[0] ** 2 * place
            place = place + times * speed
            return (place, speed), place

        return jax.lax.scan(step, (x[1], jnp.zeros_like(x[1])), None, NUM_STEPS)[1][::20]

    seen = path(jnp.array([1.5, 1.0]))
    return whmc.Target(
        lambda x: -0.5 * jnp.sum((path(x) - seen) ** 2) / 0.04 - 0.125 * jnp.sum(x**2), dim=2, starts=(-4.0, 4.0)
    )


def in_numpy():
    """Two Gaussians, with a gradient."""

    def parts(x):
        heights = np.array([-0.5 * np.sum((x + 3) ** 2), -0.5 * np.sum((x - 3) ** 2)])
        return heights, np.exp(heights - np.logaddexp(*heights))

    def gradient(x):
        _, share = parts(x)
        return -share[0] * (x + 3) - share[1] * (x - 3)

    return whmc.from_numpy(lambda x: float(np.logaddexp(*parts(x)[0])), gradient, dim=2, starts=(-8.0, 8.0))


TARGETS = {"cheap": cheap, "costly": costly, "NumPy": in_numpy}


def run(name):
    began = time.perf_counter()
    result = whmc.sample(TARGETS[name](), seed=0, draws=DRAWS, progress=False)
    digest = hashlib.sha256(np.ascontiguousarray(result.draws).tobytes()).hexdigest()
    return {"draws": digest, "gradients": result.gradients.total, "seconds": time.perf_counter() - began}


def fresh(name):
    done = subprocess.run([sys.executable, __file__, name], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    print(f"{'density':8s} {'gradients':>10s} {'idle':>7s} {'loaded':>7s}  draws")
    same = True
    for name in TARGETS:
        idle = fresh(name)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
        try:
            loaded = fresh(name)
        finally:
            for process in busy:
                process.kill()
        equal = all(idle[what] == loaded[what] for what in ("draws", "gradients"))
        same &= equal
        seconds = f"{idle['seconds']:5.1f} s {loaded['seconds']:5.1f} s"
        print(f"{name:8s} {idle['gradients']:10d} {seconds}  {'the same' if equal else 'DIFFERENT'}", flush=True)
    return 0 if same else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(run(sys.argv[1])))
    else:
        sys.exit(main())
