"""Charts from locations: the curvature of the log density there, made positive and reported."""

import dataclasses
import warnings
from typing import NamedTuple

import numpy as np

from whmc._shapes import Bool, Float
from whmc.modes.band import band_product, banded_scale
from whmc.modes.chart_data import ChartData, locations_of, with_numbers
from whmc.modes.layers.banded import Banded
from whmc.modes.library import DIAGONAL_FROM, ModeLibrary
from whmc.modes.mixture import chart_squares
from whmc.target.rows import evaluate_rows, evaluate_slopes
from whmc.target.target import Evaluation, Numbers, Target

FLAT_SHARE = 1e-8
"""Curvatures below this share of the largest are taken as flat: differences carry about this much rounding."""

STEP_SHARE = 1e-4
"""Step of a difference, as a share of the length over which the score changes: its square is the relative error."""

ROUGH_STEP_SHARE = 1e-2
"""The same where scores are not exact to float64: they are differences themselves, or computed in float32."""

GUESS_FACTOR = 30.0
"""A guess of that length that is wrong by more is replaced by what was measured."""

MOST_GUESSES = 4

PROBES = 32
"""Pairs of gradients for a diagonal alone. Beside neighbours correlated .9 each curvature is then known to a fifth."""

BAND_WIDTHS = (0, 1, 2, 4, 8)
BAND_ERROR = 0.01
"""Widths of bands that are tried in high dimension, and the relative error, in the product with a random vector, up to
which the curvature is taken for one."""

SAME_LOCATION_SD = 1e-3
"""Locations nearer than this many standard deviations are one mode given twice."""


@dataclasses.dataclass(frozen=True)
class Curvature:
    """Scale of a chart from second derivatives, and how far they had to be mended. `coupling`: of a band."""

    scale: Float[np.ndarray, "dim dim"] | Float[np.ndarray, " dim"]
    num_flat: int
    num_negative: int
    coupling: Float[np.ndarray, "width dim"] | None = None


class Expansion(NamedTuple):
    """The log density around a point to second order: its value, score and -Hessian (or the diagonal of that).

    width: 1/sqrt of the diagonal, the lengths that differences were taken over. num_gradients: what it took. beside:
    what -Hessian has beside its diagonal if it is a band, P_{j+m,j} in row m - 1.
    """

    logdensity: float
    score: Float[np.ndarray, " dim"]
    precision: Float[np.ndarray, "dim dim"] | Float[np.ndarray, " dim"]
    width: Float[np.ndarray, " dim"]
    num_gradients: int
    beside: Float[np.ndarray, "width dim"] | None = None

    def curvature(self, widest: float) -> Curvature:
        """The scale of a chart, mended where it has to be; see `mended`."""
        found = None if self.beside is None else banded_scale(self.precision, self.beside, FLAT_SHARE)
        return mended(self.precision, widest=widest) if found is None else Curvature(found[0], 0, 0, found[1])


def expand(
    target: Target,
    location: Float[np.ndarray, " dim"],
    width: Float[np.ndarray, " dim"] | float = 1.0,
    *,
    widest: float = np.inf,
    diagonal: bool = False,
) -> Expansion:
    """-H by central differences of the score, H e_j = (score(x + h e_j) - score(x - h e_j)) / 2h: `2 dim` gradients.

    They need no second derivative of the target, and no other compiled function. h is `STEP_SHARE` of the length over
    which the score changes; `width` is a guess of it, and columns whose guess was wrong are measured again; it is never
    more than `widest`. The
    diagonal alone takes `PROBES` pairs of gradients whatever the dimension: E v_j (H v)_j is H_jj for random signs v.
    A few more tell whether the Hessian is a band, and then give all of it.
    """
    measure = _diagonal if diagonal else _columns
    share = ROUGH_STEP_SHARE if _rough(target) else STEP_SHARE
    step = share * np.minimum(np.broadcast_to(np.asarray(width, float), location.shape), widest)
    here, besides = evaluate_slopes(target, location[None])
    precision, spent = np.full((len(step),) * (1 if diagonal else 2), np.nan), 1 + besides
    wrong = np.ones(len(step), bool)
    for _ in range(MOST_GUESSES):
        found, cost = measure(target, location, step, wrong)
        spent += cost
        precision[..., wrong] = found[..., wrong]
        curved = np.abs(precision if diagonal else np.diagonal(precision))
        with np.errstate(divide="ignore", invalid="ignore"):
            wanted = np.where(curved > 0, share * np.minimum(1 / np.sqrt(curved), widest), share * widest)
        wanted = np.where(np.isfinite(wanted), wanted, step)
        # no curvature to be seen, or an edge: look nearer
        wanted = np.where(np.isfinite(curved), wanted, 0.01 * step)
        factor = np.clip(wanted / step, 1e-4, 1e4)
        wrong = (factor > GUESS_FACTOR) | (factor < 1 / GUESS_FACTOR)
        if not np.any(wrong):
            break
        step = np.where(wrong, step * factor, step)
        wrong = np.ones(len(step), bool) if diagonal else wrong
    beside = None
    if diagonal:
        precision, beside, cost = _band(target, location, step, precision)
        spent += cost
    else:
        precision = 0.5 * (precision + precision.T)
    return Expansion(float(here.logdensity[0]), here.score[0], precision, step / share, spent, beside)


def _rough(target: Target) -> bool:
    box = getattr(target.logdensity, "box", None)
    return bool(getattr(box, "rough", False)) or target.logdensity_dtype == np.float32


def _columns(
    target: Target, location: Float[np.ndarray, " dim"], step: Float[np.ndarray, " dim"], which: np.ndarray
) -> tuple[Float[np.ndarray, "dim dim"], int]:
    dim, columns = len(location), np.flatnonzero(which)
    moves = np.zeros((len(columns), dim))
    moves[np.arange(len(columns)), columns] = step[columns]
    rise, usable, cost = _rises(target, location, moves)
    found = np.full((dim, dim), np.nan)
    found[:, columns] = np.where(usable[:, None], -rise / (2 * step[columns, None]), np.nan).T
    return found, cost


def _diagonal(
    target: Target, location: Float[np.ndarray, " dim"], step: Float[np.ndarray, " dim"], which: np.ndarray
) -> tuple[Float[np.ndarray, " dim"], int]:
    del which
    signs = np.random.default_rng(len(location)).choice([-1.0, 1.0], (PROBES, len(location)))
    # all coordinates move at once: shorter, so that the whole move is as long as one alone
    short = step / np.sqrt(len(step))
    rise, usable, cost = _rises(target, location, signs * short)
    if not np.any(usable):
        return np.full(len(location), np.nan), cost
    return -np.mean((signs * rise)[usable], axis=0) / (2 * short), cost


def _band(
    target: Target, location: Float[np.ndarray, " dim"], step: Float[np.ndarray, " dim"], diagonal: np.ndarray
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "width dim"] | None, int]:
    """The diagonal of -H and what is beside it, if it is a band; else the diagonal that is known; and the gradients.

    Coordinates that lie more than 2w apart move together: what one of them does to the score of another within w of it
    no other does, so 2w + 1 pairs of gradients give a band of width w. One pair more, along a random direction, tells
    whether that is all.
    """
    dim = len(location)
    numbers = np.arange(dim)
    anywhere = np.random.default_rng(dim + 1).standard_normal(dim) * step
    rise, usable, spent = _rises(target, location, anywhere[None])
    if not np.all(usable):
        return diagonal, None, spent
    for width in (width for width in BAND_WIDTHS if 2 * width + 1 < dim):
        period = 2 * width + 1
        moves = np.zeros((period, dim))
        moves[numbers % period, numbers] = step
        seen, usable, cost = _rises(target, location, moves)
        spent += cost
        if not np.all(usable):
            break
        found, beside = _band_of(-0.5 * seen, step, width)
        # in units of each coordinate's own length, so that stiff ones do not speak for all
        error, whole = (band_product(found, beside, anywhere) + 0.5 * rise[0]) * step, 0.5 * rise[0] * step
        if np.linalg.norm(error) <= BAND_ERROR * np.linalg.norm(whole):
            return (found, beside, spent) if width else (diagonal, None, spent)
    return diagonal, None, spent


def _band_of(
    products: Float[np.ndarray, "period dim"], step: Float[np.ndarray, " dim"], width: int
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "width dim"]]:
    """Diagonal and rows beside it of P, from products with vectors of every so many steps."""
    dim, period = products.shape[1], 2 * width + 1
    numbers = np.arange(dim)
    beside = np.zeros((width, dim))
    for m in range(1, width + 1):
        low, high = numbers[: dim - m], numbers[m:]
        below, above = products[low % period, high] / step[low], products[high % period, low] / step[high]
        beside[m - 1, low] = 0.5 * (below + above)
    return products[numbers % period, numbers] / step, beside


def _rises(
    target: Target, location: Float[np.ndarray, " dim"], moves: Float[np.ndarray, "m dim"]
) -> tuple[Float[np.ndarray, "m dim"], Bool[np.ndarray, " m"], int]:
    """score(x + h) - score(x - h) for some moves h, where there is a density on both sides, and the evaluations."""
    found, besides = evaluate_slopes(target, np.concatenate([location + moves, location - moves]))
    ahead, behind = found.score[: len(moves)], found.score[len(moves) :]
    inside = np.isfinite(found.logdensity)
    return ahead - behind, inside[: len(moves)] & inside[len(moves) :], 2 * len(moves) + besides


def mended(precision: np.ndarray, *, widest: float) -> Curvature:
    """L with L L^T = P^{-1}, for P = -H the precision, or its diagonal.

    A curvature that is zero or negative (a ridge, a saddle, a location that is not a mode) becomes its absolute
    value, and a flat direction gets the standard deviation `widest`: the chart is then only a start, and the warm-up
    learns the shape from draws.
    """
    diagonal = precision.ndim == 1
    if not np.all(np.isfinite(precision)):
        unit = np.ones(len(precision)) if diagonal else np.eye(len(precision))
        return Curvature(unit, num_flat=len(precision), num_negative=0)
    if diagonal:
        values, vectors = precision, None
    else:
        values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
    flat = np.abs(values) <= FLAT_SHARE * np.max(np.abs(values))
    sd = 1 / np.sqrt(np.where(flat, 1.0, np.abs(values)))
    sd = np.where(flat, max(widest, np.max(sd, where=~flat, initial=0.0)), sd)
    negative = ~flat & (values < 0)
    if vectors is None:
        scale = sd
    else:
        # QR gives the triangular factor without squaring the condition number
        upper = np.asarray(np.linalg.qr((vectors * sd).T, mode="r"))
        scale = upper.T * np.sign(np.diagonal(upper))
    return Curvature(scale, int(np.sum(flat)), int(np.sum(negative)))


def library_at(target: Target, locations: Numbers, *, diagonal: bool | None = None) -> ModeLibrary:
    """A library of the modes at `locations`: charts by curvature, weights by Laplace's formula."""
    diagonal = target.dim >= DIAGONAL_FROM if diagonal is None else diagonal
    points = _require_locations(target, locations)
    known = evaluate_rows(target, points)
    heights = known.logdensity
    _require_support(points, known)
    widest = spread(target, points)
    found = [expand(target, point, diagonal=diagonal).curvature(widest) for point in points]
    repaired = [
        f"mode {k} ({one.num_flat} flat, {one.num_negative} negative)"
        for k, one in enumerate(found)
        if one.num_flat or one.num_negative
    ]
    if repaired:
        warnings.warn(
            "the log density has directions without curvature at "
            + ", ".join(repaired)
            + ": these charts were regularised and will be learned from draws",
            stacklevel=3,
        )
    scales = [one.scale if one.coupling is None else Banded.of(one.scale, one.coupling) for one in found]
    # leapfrog's energy error in D dimensions stays the same when the step goes as D^(-1/4)
    steps = {"step_size": target.dim**-0.25}
    charts = [ChartData.of(*two, **steps, mode=k) for k, two in enumerate(zip(points, scales, strict=True))]
    laplace = heights + np.array([float(one.scale.log_det) for one in charts])
    library = ModeLibrary.of(with_numbers(charts, log_weight=laplace))
    _require_distinct(library)
    return library


def spread(target: Target, locations: Float[np.ndarray, "size dim"]) -> float:
    """The standard deviation of a direction without curvature: the size of the known region."""
    if isinstance(target.starts, tuple) and target.template is None and target.bounds is None:
        low, high = (np.asarray(edge, float) for edge in target.starts)
        return float(np.max(high - low))
    reach = np.max(np.ptp(np.asarray(locations), axis=0))
    return float(reach) if reach > 0 else 1.0


def _require_locations(target: Target, locations: Numbers) -> Float[np.ndarray, "size dim"]:
    points = np.asarray(target.flatten_all(locations))
    if points.ndim != 2 or points.shape[1] != target.dim or len(points) == 0:
        raise ValueError(f"modes has shape {points.shape}: give one row for each mode, (K, {target.dim})")
    if not np.all(np.isfinite(points)):
        k = int(np.argmax(~np.all(np.isfinite(points), axis=1)))
        raise ValueError(f"mode {k} is not finite: {points[k]}")
    return points


def _require_support(locations: Float[np.ndarray, "size dim"], known: Evaluation) -> None:
    if not np.all(np.isfinite(known.logdensity)):
        k = int(np.argmax(~np.isfinite(known.logdensity)))
        seen = "is NaN or infinite" if known.failed[k] else "is -inf"
        why = "look at print(target.check())" if known.failed[k] else "it lies outside the support; move or remove it"
        raise ValueError(f"the log density {seen} at mode {k}, {locations[k]}: {why}")


def _require_distinct(library: ModeLibrary) -> None:
    squares = chart_squares(library, locations_of(library.charts()))
    for k in range(1, len(squares)):
        distances = np.sqrt(squares[k, :k])
        if np.min(distances) < SAME_LOCATION_SD:
            raise ValueError(
                f"modes {int(np.argmin(distances))} and {k} are the same point "
                f"({float(np.min(distances)):.2g} standard deviations apart): give each mode once"
            )
