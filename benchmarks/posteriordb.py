"""posteriordb: its posteriors with reference draws, at defaults, beside NUTS on the same compiled program.

    python benchmarks/posteriordb.py PATH

PATH: a local copy of posteriordb (https://github.com/stan-dev/posteriordb). Nothing of it is part of whmc.

A line for each posterior and sampler. `z`: the largest difference of a posterior mean from that of the reference draws,
over the combined standard error, both by effective draws. `modes`: those that are reported to weigh more than 1 %; the
references have one, so more are false. `ESS/gradient`: the least bulk effective sample size of what the reference
names, over all gradients, those of the search and of the warm-up too. `seconds`: from the built program to the draws,
compilation by JAX in it. NUTS: see `peers/nuts.py`.

Each run is a process of its own: one that crashes or takes longer than the limit is told, and the others go on. An
answer is right where |z| is at most 4.5. The exit code is 1 if one of whmc's is wrong without an alarm.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

MOST_Z = 4.5
"""Standard errors that a mean may be off: as in `shapes.py`."""

LEAST_WEIGHT = 0.01
"""Of a mode that counts."""

FAILED = 3
"""Exit code of a run that has said why it failed."""


class Posterior(NamedTuple):
    """The files of a posterior."""

    name: str
    program: Path
    data: Path
    reference: Path

    @property
    def missing(self):
        """The first file that the copy does not have."""
        return next((path for path in self[1:] if not path.is_file()), None)


def posteriors(home):
    """All that have reference draws, by name."""
    base = home / "posterior_database" if (home / "posterior_database").is_dir() else home
    if not (base / "posteriors").is_dir():
        sys.exit(f"{home} is no copy of posteriordb: it has no folder posterior_database/posteriors")
    found = {}
    for path in sorted((base / "posteriors").glob("*.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        if told.get("reference_posterior_name"):
            found[path.stem] = Posterior(
                path.stem,
                base / "models" / "stan" / f"{told['model_name']}.stan",
                base / "data" / "data" / f"{told['data_name']}.json.zip",
                base / "reference_posteriors" / "draws" / "draws" / f"{told['reference_posterior_name']}.json.zip",
            )
    return found


def matching(wanted, known):
    """The posterior of this name, else all whose names begin so."""
    return [wanted] if wanted in known else [name for name in known if name.startswith(wanted)]


def unzipped(path):
    """The text of the one file in an archive."""
    with zipfile.ZipFile(path) as archive:
        return archive.read(archive.namelist()[0]).decode()


def reference_draws(path):
    """Scalars by name, (chains, draws) each."""
    chains = json.loads(unzipped(path))
    return {name: np.array([chain[name] for chain in chains], float) for name in chains[0]}


def scalars(values):
    """Arrays (chains, draws, ...) as scalars with Stan's names: "theta[1]", "sigma[2,1]"."""
    found = {}
    for name, rows in values.items():
        for index in np.ndindex(rows.shape[2:]):
            at = "[" + ",".join(str(n + 1) for n in index) + "]" if index else ""
            found[name + at] = rows[(slice(None), slice(None), *index)]
    return found


def compared(values, reference):
    """The least effective draws and the largest z of what both name."""
    from whmc.estimate.parameters import ParameterTable

    names = [name for name in reference if name in values]
    if not names:
        raise ValueError(f"no common names: the reference has {list(reference)[:5]}, the run {list(values)[:5]}")
    mine, theirs = (ParameterTable.of({name: one[name] for name in names}) for one in (values, reference))
    se = np.hypot(mine.sd / np.sqrt(mine.ess), theirs.sd / np.sqrt(theirs.ess))
    moves = (mine.sd > 0) | (theirs.sd > 0)  # entries such as the diagonal of a correlation matrix are constant
    z = np.abs(mine.mean - theirs.mean)[moves] / se[moves]
    return {
        "ess": float(np.min(mine.ess[moves])),
        "z": float(np.max(z)),
        "worst": np.array(names)[moves][int(np.argmax(z))],
        "unnamed": len(reference) - len(names),
    }


def run_whmc(target):
    import whmc

    result = whmc.sample(target, progress=False)
    spent = result.gradients
    return result.constrained(), {
        "gradients": spent.total,
        "search": spent.search / max(spent.warmup + spent.sampling, 1),
        "modes": int(np.sum(result.modes.weight > LEAST_WEIGHT)),
        "alarms": [alarm.name for alarm in result.alarms],
    }


def run_nuts(target):
    from peers.nuts import make_nuts

    found = make_nuts(target)(0)
    return target.named_values(found.draws), {"gradients": found.num_sampling + found.num_warmup}


RUNS = {"whmc": run_whmc, "NUTS": run_nuts}


def run(posterior, who):
    """In a process of its own: the figures of one run, as JSON."""
    import whmc

    began = time.perf_counter()
    target = whmc.from_stan(posterior.program, unzipped(posterior.data))
    values, told = RUNS[who](target)
    seconds = time.perf_counter() - began
    told |= {"dim": target.dim, "seconds": seconds}
    return told | compared(scalars(values), reference_draws(posterior.reference))


def run_and_tell(posterior, who):
    try:
        print(json.dumps(run(posterior, who)))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        return FAILED
    return 0


def apart(home, posterior, who, limit):
    """The figures of a run in a fresh process, or why there are none."""
    try:
        done = subprocess.run(
            [sys.executable, __file__, str(home), "--run", posterior.name, who],
            capture_output=True,
            text=True,
            env={**os.environ, "WHMC_CACHE": "off"},
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took longer than {limit:.0f} s"}
    lines = done.stdout.strip().splitlines() or [""]
    if done.returncode == 0:
        return json.loads(lines[-1])
    if done.returncode == FAILED:
        return {"failed": lines[0]}
    said = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
    return {"failed": f"crashed with code {done.returncode}: {said}"}


def built(posterior):
    """None if the program is there and compiled, before any clock starts; else why not."""
    from whmc.frontends.stan_build import build

    if posterior.missing is not None:
        return f"this copy has no {posterior.missing.name}"
    try:
        build(posterior.program)
    except Exception as error:
        return f"not built: {str(error).strip().splitlines()[-1]}"
    return None


def show(name, who, told):
    if "failed" in told:
        print(f"{name:42s} {who:4s} {told['failed']}", flush=True)
        return
    rate = told["ess"] / told["gradients"]
    modes, search = (f"{told[key]:{form}}" if key in told else "" for key, form in (("modes", "d"), ("search", ".2f")))
    remarks = [", ".join(told.get("alarms", []))]
    remarks += [f"z of {told['worst']}"] * (not told["z"] <= MOST_Z)
    remarks += [f"{told['unnamed']} names of the reference not compared"] * (told["unnamed"] > 0)
    print(
        f"{name:42s} {who:4s} {told['dim']:4d} {told['z']:6.1f} {modes:>5s} {told['ess']:7.0f} {rate:12.5f} "
        f"{search:>7s} {told['seconds']:8.0f}  {'; '.join(filter(None, remarks))}",
        flush=True,
    )


def summary(table):
    """Lines about all posteriors, and the names of those that are wrong without an alarm."""
    ours = {name: told["whmc"] for name, told in table.items() if "failed" not in told["whmc"]}
    right = [name for name, told in ours.items() if told["z"] <= MOST_Z]
    wrong = [name for name in ours if name not in right]
    silent = [name for name in wrong if not ours[name]["alarms"]]
    lines = [
        f"{len(table)} posteriors, {len(ours)} sampled, {len(table) - len(ours)} without an answer",
        f"right {len(right)}, of these with an alarm {sum(bool(ours[name]['alarms']) for name in right)}; "
        f"wrong with an alarm {len(wrong) - len(silent)}; wrong without an alarm {len(silent)}: {silent}",
        f"false modes {[name for name, told in ours.items() if told['modes'] > 1]}",
    ]
    if ours:
        medians = {key: np.median([told[key] for told in ours.values()]) for key in ("z", "search", "seconds")}
        rate = np.median([told["ess"] / told["gradients"] for told in ours.values()])
        lines.append(
            f"medians: z {medians['z']:.1f}, ESS/gradient {rate:.5f}, search over warm-up and sampling "
            f"{medians['search']:.2f}, seconds {medians['seconds']:.0f}"
        )
    both = {name: table[name]["NUTS"] for name in ours if "failed" not in table[name].get("NUTS", {"failed": ""})}
    if both:
        rates = [
            ours[name]["ess"] / ours[name]["gradients"] / (theirs["ess"] / theirs["gradients"])
            for name, theirs in both.items()
        ]
        seconds = [ours[name]["seconds"] / theirs["seconds"] for name, theirs in both.items()]
        lines.append(
            f"beside NUTS, of {len(both)}: ESS/gradient {np.median(rates):.2f} times its own (least {min(rates):.2f}), "
            f"seconds {np.median(seconds):.2f} times; NUTS right {sum(one['z'] <= MOST_Z for one in both.values())}"
        )
    return lines, silent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="posteriors to run, or the beginnings of their names")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of one run at most")
    parser.add_argument("--no-nuts", action="store_true")
    parser.add_argument("--run", nargs=2, metavar=("NAME", "WHO"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = posteriors(options.path)
    if options.run:
        return run_and_tell(known[options.run[0]], options.run[1])
    if options.only:
        chosen = {wanted: matching(wanted, known) for wanted in options.only}
        unknown = [wanted for wanted, names in chosen.items() if not names]
        if unknown:
            parser.error(f"no posterior with reference draws begins with {unknown}: there are {list(known)}")
        known = {name: known[name] for names in chosen.values() for name in names}
    print(
        f"{'posterior':42s} {'who':4s} {'D':>4s} {'z':>6s} {'modes':>5s} {'ESS':>7s} {'ESS/gradient':>12s} "
        f"{'search':>7s} {'seconds':>8s}  alarms"
    )
    table, who = {}, ["whmc"] if options.no_nuts else ["whmc", "NUTS"]
    for name, posterior in known.items():
        trouble = built(posterior)
        table[name] = {}
        for one in who[:1] if trouble else who:
            told = {"failed": trouble} if trouble else apart(options.path, posterior, one, options.limit)
            table[name][one] = told
            show(name, one, told)
    lines, silent = summary(table)
    print("\n" + "\n".join(lines))
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
