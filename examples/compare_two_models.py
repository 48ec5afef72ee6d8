"""A student beside its teacher: accuracy on your data, counts, latency, and what differs in which layer."""

import torch
from torch import nn

import sweeprof


def classifier(width: int) -> nn.Sequential:
    """Return a classifier of ten classes of 64 numbers."""
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def main() -> tuple[sweeprof.Profiler, sweeprof.Profiler]:
    """Print the comparison; return the profilers of both models."""
    torch.manual_seed(0)
    samples, labels = torch.randn(256, 64), torch.randint(10, (256,))
    batches = [(samples[i : i + 32], labels[i : i + 32]) for i in range(0, 256, 32)]  # or a DataLoader

    teacher = sweeprof.Profiler(
        classifier(512), data={"test": batches}, protocol=sweeprof.Protocol(min_s=0.1, warmup_s=0.05)
    )
    student = teacher.clone(model=classifier(64))  # the same data, settings and metrics
    metrics = ["params/total", "compute/macs", "memory/act_peak_live_bytes", "quality/accuracy", "latency/forward"]
    teacher.compute_all(metrics)

    # The student computes what only the teacher has computed. The answer in words, then a table: values, ratios, verdicts and the
    # reason where there is no value.
    differences = sweeprof.compare(baseline=teacher, candidate=student)
    print(differences)
    print(differences.to_frame()[["name", "baseline", "candidate", "ratio"]])
    print(sweeprof.side_by_side(teacher.layers, student.layers, names=("teacher", "student")))

    # One process cannot tell a small difference in speed from chance: the verdict is "unclear". A sweep measures several
    # rounds, each in a process of its own: see run_a_sweep.py.
    return teacher, student


if __name__ == "__main__":
    main()
