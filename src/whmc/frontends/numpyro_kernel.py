"""WHMC, a kernel for `numpyro.infer.MCMC`: a NumPyro user writes `WHMC(model)` for `NUTS(model)`.

The search for modes and the warm-up of whmc are made once, in `init`; after that kernel and library are frozen, so
every step that MCMC asks for, in its warm-up or after, is one and the same exact step.
"""

import collections
import dataclasses
import hashlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array
from whmc.frontends.numpyro import Model, read_model, require_density
from whmc.kernels.base import AbstractKernel, ChainState, init
from whmc.kernels.block import Trace
from whmc.kernels.settings import arrays, infos
from whmc.modes.chart import row
from whmc.modes.library import ModeLibrary
from whmc.result import Gradients, Result
from whmc.run.advance import with_findings
from whmc.run.chains import cost_of
from whmc.run.outcome import make_result
from whmc.run.plan import Plan
from whmc.run.prepare import prepare
from whmc.run.progress import Progress
from whmc.run.sample import MOST_WARMUP, begin
from whmc.run.state import RunState, Version
from whmc.search.find import MAX_MODES, require_finders
from whmc.search.finders import AbstractFinder
from whmc.search.report import SearchReport
from whmc.target.check import require_count
from whmc.target.target import Numbers, Target

LEAST_WARMUP = 500
"""Steps in which whmc learns charts and weights at least, as in `whmc.sample`; NUTS is content with fewer."""

MAX_PREPARED = 4
"""Data sets whose modes and tuned kernels are kept; for an older one the search is made again."""

MCMCKernel: Any = importlib.import_module("numpyro.infer.mcmc").MCMCKernel
is_prng_key: Any = importlib.import_module("numpyro.util").is_prng_key


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class DataNumber:
    """Which data a chain samples.

    MCMC keeps what it has compiled by the identity of arrays, which may hold new numbers by now. A state with another
    DataNumber has another structure, so that its step is compiled again.
    """

    number: int


class WHMCState(NamedTuple):
    """A chain after a step; every field can be an extra field of `MCMC.run`.

    z: unconstrained values of the sites. potential_energy: minus the log density. mode: that of the chart with the
    largest responsibility, as the warm-up told modes apart; `WHMC.result` tells them by their peaks. accept_prob:
    acceptance probability of the local move. num_steps: gradients that the step took. diverging: whether the local move
    lost all energy, or came where there is no density. trace: what a Result is made of. chain, rng_key: what the next
    step needs. data: which data the chain samples.
    """

    z: dict[str, Any]
    potential_energy: Any
    mode: Any
    accept_prob: Any
    num_steps: Any
    diverging: Any
    trace: tuple[Any, ...]
    chain: ChainState
    rng_key: Any
    data: DataNumber


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A model whose modes are found and whose kernel is tuned. `model`, `target`, `kernel` and `library` are in the
    user's precision, in which MCMC runs; `run` and `run_target` are whmc's own, in float64."""

    model: Model
    target: Target
    kernel: AbstractKernel
    library: ModeLibrary
    run: RunState
    run_target: Target
    data: DataNumber

    def start(self, rng_key: Array, params: Any) -> WHMCState:
        """A chain where one of the warm-up's chains ended, or at unconstrained values that are given."""
        rng_key, pick = jax.random.split(rng_key)
        if params is None:
            ends = jnp.asarray(np.asarray(self.run.chains.states.position), float)
            position = ends[jax.random.randint(pick, (), 0, len(ends))]
        else:
            position = self.model.flatten(params)
        chain = init(position, self.target, self.library)
        shapes = jax.eval_shape(lambda key: self.kernel.step(key, chain, self.target, self.library)[1], pick)
        return self.state(chain, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), rng_key)

    def advance(self, state: WHMCState) -> WHMCState:
        """One step of the frozen kernel."""
        rng_key, key = jax.random.split(state.rng_key)
        chain, info = self.kernel.step(key, state.chain, self.target, self.library)
        return self.state(chain, info, rng_key)

    def state(self, chain: ChainState, info: Any, rng_key: Array) -> WHMCState:
        """What MCMC is shown of a chain."""
        parts = infos(info)
        failed = sum(part.num_failed for part in parts) > 0
        return WHMCState(
            z=self.model.unflatten(chain.position),
            potential_energy=-chain.logdensity,
            mode=row(self.library.mode, chain.label),
            accept_prob=jnp.exp(jnp.minimum(parts[0].log_ratio, 0.0)),
            num_steps=sum(part.num_gradients for part in parts),
            diverging=failed | (parts[0].log_ratio < -1000.0),  # NUTS draws the line there
            trace=(chain.position, chain.logdensity, chain.log_mixture, chain.label, info),  # ArviZ skips tuples
            chain=chain,
            rng_key=rng_key,
            data=self.data,
        )

    def result(self, trace: Trace, num_asked: int, view: Progress) -> Result:
        """The result of whmc, from the record of all chains, (draws, chains, ...). In float64."""
        cost = cost_of(trace)
        version = Version(arrays(self.kernel), self.library.rebuilt())
        plan = dataclasses.replace(self.run.plan, draws=num_asked)
        state = dataclasses.replace(self.run, plan=plan).with_learned(versions=(version,))
        state = state.charged(Gradients(sampling=cost.num_gradients), num_failed=cost.num_failed)
        made = make_result(state, self.run_target, trace, version.kernel, {})
        state = with_findings(state, self.run_target, made, view)
        return make_result(state, self.run_target, trace, version.kernel, {})


class WHMC(MCMCKernel):
    """Exact wormhole jumps between modes, for `numpyro.infer.MCMC`:

        mcmc = MCMC(WHMC(model), num_warmup=500, num_samples=1000, num_chains=4, chain_method="vectorized")

    The first `run` with some data finds the modes and warms up, on one set of chains of its own; all chains of the run,
    and later runs with the same data, share what was found. For another search take another kernel. Steps of MCMC's
    own warm-up are steps like any other, thrown away.

    modes, finder, max_modes, kernel, progress: as in `whmc.sample`.
    chains, warmup: chains and steps in which charts and weights are learned; as many steps as MCMC's own warm-up has,
        but at least 500, unless given.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        modes: Numbers | ModeLibrary | None = None,
        finder: AbstractFinder | Sequence[AbstractFinder] | None = None,
        max_modes: int = MAX_MODES,
        chains: int = 16,
        warmup: int | None = None,
        kernel: AbstractKernel | None = None,
        progress: bool | None = None,
    ) -> None:
        if not callable(model):
            raise TypeError(f"model must be a function with numpyro.sample statements, got {type(model).__name__}")
        for name, value, least in (("max_modes", max_modes, 1), ("chains", chains, 1), ("warmup", warmup or 0, 0)):
            require_count(name, value, least)
        require_finders(finder)
        if kernel is not None and not isinstance(kernel, AbstractKernel):
            raise TypeError(f"kernel must be a whmc kernel such as LocalHMC(), got {type(kernel).__name__}")
        self.model = model
        self._modes, self._finder, self._max_modes, self._kernel = modes, finder, max_modes, kernel
        self._chains, self._warmup, self._progress = chains, warmup, progress
        self._known: collections.OrderedDict[tuple[Any, ...], Prepared] = collections.OrderedDict()
        self._num_prepared = 0
        self._last: Prepared | None = None

    sample_field = "z"
    default_fields = ("z", "diverging", "trace")

    def init(
        self, rng_key: Any, num_warmup: int, init_params: Any = None, model_args: Any = (), model_kwargs: Any = None
    ) -> WHMCState:
        """Finds the modes and warms up, unless that is done; then the state of a chain, or of one for each key.

        init_params: unconstrained values to start from.
        """
        if isinstance(rng_key, jax.core.Tracer):
            raise TypeError(
                "WHMC looks for modes before it samples, which cannot be compiled: use chain_method='vectorized' (or "
                "'sequential') instead of 'parallel' or a transformation of JAX"
            )
        several = not is_prng_key(rng_key)
        prepared = self._find(model_args, model_kwargs)
        if prepared is None:
            first = rng_key[0] if several else rng_key
            prepared = self._prepare(first, num_warmup, tuple(model_args), dict(model_kwargs or {}))
        self._last = prepared
        start = jax.vmap(prepared.start, (0, None if init_params is None else 0)) if several else prepared.start
        state: WHMCState = jax.jit(start)(rng_key, init_params)
        if not np.all(np.isfinite(state.potential_energy)):
            raise ValueError(
                f"the log density is not finite where chains start, in {jnp.result_type(float)}: "
                "give other init_params, or call numpyro.enable_x64() first"
            )
        return state

    def sample(self, state: WHMCState, model_args: Any, model_kwargs: Any) -> WHMCState:
        """One step of each chain."""
        advance = self._require(model_args, model_kwargs).advance
        return advance(state) if jnp.ndim(state.potential_energy) == 0 else jax.vmap(advance)(state)

    def postprocess_fn(self, model_args: Any, model_kwargs: Any) -> Callable[[Any], Any]:
        """From unconstrained values to constrained ones and deterministics."""
        return self._require(model_args, model_kwargs).model.constrain

    def get_diagnostics_str(self, state: WHMCState) -> str:
        """For the progress bar."""
        return f"mode {int(state.mode)}, {int(state.num_steps)} gradients. acc. prob={float(state.accept_prob):.2f}"

    @property
    def target(self) -> Target:
        """The model that was run last, as whmc sees it."""
        return self._current().run_target

    @property
    def library(self) -> ModeLibrary:
        """The charts of its modes."""
        return self._current().library

    @property
    def search(self) -> SearchReport | None:
        """The account of the search for them."""
        return self._current().run.search_report

    def result(self, mcmc: Any) -> Result:
        """The run of `mcmc` as a Result of whmc: modes, weights, evidence, alarms; after `mcmc.run(...)`.

        It makes ascents from draws, which tell the modes apart, and annealed paths where the evidence needs them. The
        ledger counts the steps of the draws that MCMC has kept.
        """
        fields = mcmc.get_extra_fields(group_by_chain=True)
        # in the precision of the run, which may not be the one in force now
        dtype = fields["trace"][0].dtype if "trace" in fields else None
        prepared = self._find(mcmc._args, mcmc._kwargs, dtype)
        if prepared is None or dtype is None:
            raise ValueError("this kernel did not make the draws of that MCMC: call mcmc.sampler.result(mcmc)")
        rows = jax.tree.map(lambda leaf: np.swapaxes(_wide(leaf), 0, 1), fields["trace"])
        with Progress(self._progress) as view, jax.enable_x64(True):
            return prepared.result(Trace(*rows), mcmc.num_samples // mcmc.thinning, view)

    def _current(self) -> Prepared:
        if self._last is None:
            raise RuntimeError("WHMC knows no modes yet: call mcmc.run(...) first")
        return self._last

    def _prepare(self, rng_key: Any, num_warmup: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Prepared:
        """The search and the warm-up, in float64, then what MCMC runs, in the user's precision."""
        content = _content(args, kwargs)
        warmup = int(np.clip(num_warmup, LEAST_WARMUP, MOST_WARMUP)) if self._warmup is None else self._warmup
        seed = int(jax.random.bits(rng_key, dtype=jnp.uint32))
        with Progress(self._progress) as view, jax.enable_x64(True):
            model = read_model(self.model, args, kwargs)
            require_density(model)
            plan = Plan(max_modes=self._max_modes, seed=seed, chains=self._chains, warmup=warmup)
            run_target, state = begin(model.target(), plan, modes=self._modes, finder=self._finder, kernel=self._kernel)
            state = prepare(state, run_target, view)
        target = run_target
        if jnp.result_type(float) != jnp.float64:
            model = read_model(self.model, args, kwargs)
            target = model.target()
        self._num_prepared += 1
        kernel, library = arrays(state.newest.kernel), state.newest.library.rebuilt()
        prepared = Prepared(model, target, kernel, library, state, run_target, DataNumber(self._num_prepared))
        self._known[content] = prepared
        if len(self._known) > MAX_PREPARED:
            self._known.popitem(last=False)
        return prepared

    def _find(self, args: Any, kwargs: Any, dtype: Any = None) -> Prepared | None:
        """What was prepared for data with this content, in the precision in force unless told."""
        content = _content(args, kwargs, dtype)
        if content in self._known:
            self._known.move_to_end(content)
        return self._known.get(content)

    def _require(self, args: Any, kwargs: Any) -> Prepared:
        prepared = self._find(args, kwargs)
        if prepared is None:
            raise ValueError(
                "WHMC was not prepared for these data: call its init first; jit_model_args=True cannot work, since new "
                "data may have other modes"
            )
        return prepared

    def __getstate__(self) -> dict[str, Any]:
        # compiled functions cannot be pickled: a copy looks for the modes again
        return {**self.__dict__, "_known": collections.OrderedDict(), "_last": None}


def _content(args: Any, kwargs: Any, dtype: Any = None) -> tuple[Any, ...]:
    """All that a run depends on, to be compared: the data and the precision.

    Arrays count by their numbers, not as objects: their owner may write new numbers into them.
    """
    leaves, structure = jax.tree.flatten((tuple(args), dict(kwargs or {})))
    return (str(dtype or jnp.result_type(float)), structure, *map(_leaf_content, leaves))


def _leaf_content(leaf: Any) -> Any:
    if isinstance(leaf, (bool, int, float, str)):
        return type(leaf), leaf
    numbers = isinstance(leaf, (np.ndarray, jax.Array)) and not isinstance(leaf, jax.core.Tracer)
    if not numbers or not isinstance(leaf.dtype, np.dtype) or leaf.dtype.hasobject:
        return _Itself(leaf)
    array = np.ascontiguousarray(leaf)
    return str(array.dtype), np.shape(leaf), hashlib.sha256(array.tobytes()).hexdigest()


class _Itself:
    """An object whose content cannot be compared: equal to nothing but itself."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def _wide(leaf: Any) -> np.ndarray:
    """In float64 if it is a float."""
    rows = np.asarray(leaf)
    return rows.astype(float) if np.issubdtype(rows.dtype, np.floating) else rows
