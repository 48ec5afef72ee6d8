"""The clock, and how far apart the same work comes out: within a process, and from one process to the next."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from scipy import special

from sweeprof.doctor.host import GOOD_CLOCKS, Advice, Finding, known
from sweeprof.paths import conf_folder
from sweeprof.processes import child_environment, module_command
from sweeprof.results import environment
from sweeprof.results.protocol import Protocol
from sweeprof.results.statistics import CONFIDENCE, spread

SIZE = 192
"""Of the square matrices that are multiplied: about a millisecond's work on one thread."""
COARSE_S = 1e-6
NOISY = 0.05
"""Between processes: the threshold of the default protocol."""
CHILD_S = 60.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Medians of the kernel's seconds, process by process, and their spread within."""

    medians: Sequence[float]
    spreads: Sequence[float]

    @property
    def between(self) -> float:
        """Standard deviation of the logarithms of the medians, so about the relative one."""
        return statistics.stdev(map(math.log, self.medians))

    @property
    def within(self) -> float:
        """Interquartile range over median, of the processes' middle."""
        return statistics.median(self.spreads)


def clock(root: Path = environment.ROOT) -> Iterator[Finding]:
    """Yield the resolution of the clock, and the cost of reading it."""
    readings = [time.perf_counter() for _ in range(20_000)]
    steps = [b - a for a, b in itertools.pairwise(readings) if b > a]
    resolution, cost = min(steps), (readings[-1] - readings[0]) / len(readings)
    coarse = resolution > COARSE_S
    advice = Advice("take longer samples", f"protocol.sample_s={resolution * 1e4:.2g}") if coarse else None
    yield Finding("Clock", "resolution", f"{resolution * 1e9:.0f} ns", advice=advice, distorts=coarse)
    yield known("Clock", "cost of a reading", f"{cost * 1e9:.0f} ns")
    source = environment.clock_source(root)
    slow = source is not None and source not in GOOD_CLOCKS
    command = "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource"
    advice = Advice("every reading is a call into the kernel", command) if slow else None
    yield Finding("Clock", "source", source, None if source else "the system does not report it", advice)


def measured(processes: int, seconds: float) -> Noise:
    """Return the noise of ``processes`` fresh processes one after the other, each of which works for ``seconds``."""
    command = [*module_command("sweeprof.doctor.noise"), str(seconds)]
    variables = child_environment({})
    results = []
    for _ in range(processes):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=CHILD_S)
        results.append(json.loads(done.stdout))
    return Noise([result["median"] for result in results], [result["spread"] for result in results])


def noise(processes: int, seconds: float, protocols: Mapping[str, Protocol]) -> Iterator[Finding]:
    """Measure the noise of this machine; yield it and what it means."""
    try:
        seen = measured(processes, seconds)
    except (OSError, subprocess.SubprocessError) as error:
        yield known("Noise", "between processes", None, f"a process of the measurement failed: {error}")
        return
    yield from meaning(seen, protocols)


def meaning(seen: Noise, protocols: Mapping[str, Protocol]) -> Iterator[Finding]:
    """Yield the differences that each protocol can resolve with the measured noise."""
    count = len(seen.medians)
    yield known("Noise", "within a process", f"{seen.within:.1%} (interquartile range over median)")
    loud = seen.between > NOISY
    advice = (
        Advice("see Load and Processor; or interleave the samples", "protocol.interleave=samples") if loud else None
    )
    text = f"{seen.between:.1%} (standard deviation of {count} processes' medians)"
    yield Finding("Noise", "between processes", text, advice=advice, distorts=loud)
    for name, protocol in protocols.items():
        rounds, threshold = protocol.rounds, protocol.threshold
        if rounds < 2:
            yield known("Noise", f"protocol={name}", "1 round settles nothing: it does not compare processes")
            continue
        half = settled(rounds, seen.between)
        text = f"{rounds} rounds settle {half:.1%}"
        if threshold is not None:
            text += f"; called better or worse from {threshold + half:.1%}, with its threshold of {threshold:.0%}"
        yield known("Noise", f"protocol={name}", text)


def settled(rounds: int, between: float) -> float:
    """Return half the relative width of the interval of a ratio of two combinations after ``rounds``.

    Both have the spread ``between`` processes; what their pairing by round saves comes off it.
    """
    t = float(special.stdtrit(rounds - 1, (1 + CONFIDENCE) / 2))
    return math.expm1(t * between * math.sqrt(2 / rounds))


def protocols() -> dict[str, Protocol]:
    """Return the protocols of the package, the shortest first."""
    files = (conf_folder() / "protocol").glob("*.yaml")
    settings = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}
    whole = {name: Protocol(**values) for name, values in settings.items() if "rounds" in values}
    return dict(sorted(whole.items(), key=lambda item: (item[1].rounds, item[0])))


def main() -> None:
    """``python -m sweeprof.doctor.noise SECONDS``: time the kernel in this process."""
    matrix = np.random.default_rng(0).standard_normal((SIZE, SIZE))
    for _ in range(20):
        matrix @ matrix
    samples = []
    end = time.perf_counter() + float(sys.argv[1])
    while time.perf_counter() < end:
        begin = time.perf_counter()
        matrix @ matrix
        samples.append(time.perf_counter() - begin)
    print(json.dumps({"median": statistics.median(samples), "spread": spread(samples)}))


if __name__ == "__main__":
    main()
