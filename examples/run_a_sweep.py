"""A sweep that Python starts, and its results in pandas."""

from pathlib import Path

import pandas as pd

import sweeprof


def main(output: Path = Path("outputs")) -> tuple[sweeprof.Comparison, pd.DataFrame]:
    """Measure two models at two batch sizes and print what was found; return the comparison and the latencies."""
    comparison = sweeprof.sweep(
        {"model": ["lenet5", "mlp"], "batch_size": [1, 32]},
        name="example",
        output=output,
        metrics="latency",
        tracking="none",
        protocol={"rounds": 3, "threshold": 0.1, "min_s": 0.1, "warmup_s": 0.05},
        compare={"baseline": {"model": "lenet5"}},
    )

    # The answer in words, then a table per model. In a notebook it is shown as HTML.
    print(comparison)
    print("fastest:", comparison.best("latency/forward").axes)

    # Every value, a row each, in base units; the axes are columns.
    frame = comparison.to_frame()
    latency = frame[frame["metric"] == "latency/forward"]
    print(latency.pivot(index="model", columns="batch_size", values="value") * 1e3)

    # Raw samples, for statistics or charts of your own.
    samples = pd.read_csv(comparison.folder / "tables" / "samples.csv")
    print(samples[samples["phase"] == "step"].groupby(["model", "batch_size"])["seconds"].describe())
    return comparison, latency


if __name__ == "__main__":
    main()
