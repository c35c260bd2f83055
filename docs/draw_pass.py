"""Draws pass.png: the log density between the peaks of two Gaussians, which far enough apart are two modes.

python docs/draw_pass.py
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

import whmc
from whmc.estimate.basins import VALLEY
from whmc.plots.style import COLOURS, EDGE, STYLE

GAPS = (4.4, 3.0)
"""Distances of the two means, in standard deviations."""

WEIGHT = 0.6
BOTTOM = -4.2
"""Nats below the higher peak where the picture ends."""


def two_gaussians(gap):
    """Weights .6 and .4, unit covariance, in two dimensions."""

    def logdensity(x):
        left, right = -0.5 * jnp.sum(x**2), -0.5 * jnp.sum((x - jnp.array([gap, 0.0])) ** 2)
        return jnp.logaddexp(jnp.log(WEIGHT) + left, jnp.log(1 - WEIGHT) + right)

    return whmc.Target(logdensity, dim=2, starts=(-5.0, 5.0 + gap))


def section(target, first, second):
    """Places on the line through two peaks, from the first on, the log density there, and the place of the pass."""
    apart = np.linalg.norm(second - first)
    place = np.linspace(-3.5, apart + 3.5, 2001)
    with jax.enable_x64(True):
        height = np.asarray(jax.vmap(target.logdensity)(first + place[:, None] * (second - first) / apart))
    between = np.flatnonzero((place > 0) & (place < apart))
    return place, height, between[np.argmin(height[between])]


def draw(axes, gap):
    target = two_gaussians(gap)
    result = whmc.sample(target, seed=0, progress=False)
    basins, table, modes = result.basins, result.modes, result.num_modes
    order = np.argsort(basins.location[:, 0])
    mode, top = result.partition.of_peak[order], basins.height.max()
    place, height, lowest = section(target, *basins.location[order])
    peaks, height = basins.height[order] - top, height - top
    at, low, there = place[lowest], height[lowest], np.array([0.0, place[-1] - 3.5])

    for own, side in zip(mode, (slice(lowest + 1), slice(lowest, None)), strict=True):
        axes.fill_between(place[side], height[side], BOTTOM, color=COLOURS[own], alpha=0.3, lw=0)
    axes.plot(place, height, color=EDGE)
    axes.plot(there, peaks, "o", color=EDGE)
    for x, y, name in zip(there, peaks, ("higher peak", "lower peak"), strict=True):
        axes.annotate(name, (x, y), (0, 8), textcoords="offset points", ha="center")
    axes.plot([at, there[1]], [peaks[1]] * 2, "--", color=EDGE, lw=1)
    axes.annotate("", (at, peaks[1]), (at, low), arrowprops={"arrowstyle": "<->", "shrinkA": 0, "shrinkB": 0})
    words = f"pass, {basins.fall[0]:.1f} nats\nbelow the lower peak"
    axes.annotate(words, (at, low), (0, -6), textcoords="offset points", ha="center", va="top")
    for k in range(modes):
        words = f"mode {k}\nweight {table.weight[k]:.3f}" if modes > 1 else f"mode {k}, with {table.peaks[k]} peaks"
        axes.annotate(words, (there[mode == k].mean(), 0.85 * BOTTOM), ha="center", va="center")
    less = "less" if basins.fall[0] < VALLEY else "more"
    axes.set_title(f"{less} than {VALLEY:g} nat: {'two modes' if modes > 1 else 'one mode'}", fontsize=11)
    axes.set(xlim=(at - 4.5, at + 4.5), ylim=(BOTTOM, 0.8), xlabel="place on the line between the peaks")


def main():
    with rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.4), dpi=100, layout="constrained")
        panels = figure.subplots(1, len(GAPS), sharey=True)
        for axes, gap in zip(panels, GAPS, strict=True):
            draw(axes, gap)
        panels[0].set_ylabel("log density, higher peak at 0")
        figure.savefig(Path(__file__).with_name("pass.png"))


if __name__ == "__main__":
    main()
