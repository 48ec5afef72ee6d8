"""A sweep that Python starts, and its results in pandas."""

import subprocess
import sys
from pathlib import Path

import pandas as pd

import sweeprof


def run(output: Path) -> Path:
    """Measure two models at two batch sizes, and return the folder with the results.

    A sweep runs each measurement in a process of its own, so it is started as a command; each argument is a key of the config.
    """
    arguments = [
        *("model=lenet5,mlp", "batch_size=1,32", "compare.baseline={model: lenet5}"),
        *("metrics=latency", "tracking=none", "protocol.rounds=3", "protocol.threshold=0.1"),
        *("protocol.min_s=0.1", "protocol.warmup_s=0.05", "name=example", f"output={output}"),
    ]
    subprocess.run([sys.executable, "-m", "sweeprof", *arguments], check=True)
    return max((output / "example").iterdir())  # the folders are named by the time of their creation


def main(output: Path = Path("outputs")) -> tuple[sweeprof.Comparison, pd.DataFrame]:
    """Run the sweep and print what it found; return the comparison and the latencies."""
    folder = run(output)

    # The comparison: the answer in words, then a table per model. In a notebook it is shown as HTML.
    comparison = sweeprof.Comparison.read(folder)
    print(comparison)

    # Every value, a row each, in base units; the axes are columns.
    measurements = pd.read_csv(folder / "tables" / "measurements.csv")
    latency = measurements[measurements["metric"] == "latency/forward"]
    print(latency.pivot(index="model", columns="batch_size", values="value") * 1e3)

    # Raw samples, for statistics or charts of your own.
    samples = pd.read_csv(folder / "tables" / "samples.csv")
    print(samples[samples["phase"] == "step"].groupby(["model", "batch_size"])["seconds"].describe())
    return comparison, latency


if __name__ == "__main__":
    main()
