"""One step of a training loop that you have: its phases, its layers, and the tensors that are alive after it."""

import torch
from torch import nn

import sweeprof


def main() -> sweeprof.TrainingProfiler:
    """Train for a few steps, of which one is profiled; return its profile."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    criterion = nn.CrossEntropyLoss()
    batches = [(torch.randn(32, 64), torch.randint(10, (32,))) for _ in range(8)]

    # Step 5 is profiled; the others run without any probe.
    profiler = sweeprof.TrainingProfiler(model, profile_step=5)
    for samples, labels in batches:
        with profiler.step():
            loss = criterion(model(samples), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print(profiler.iteration)  # forward, backward, update, and the whole step
    print(profiler.summary())

    # Or watch any part of a program, for as many steps as you like.
    with sweeprof.session(model) as watched:
        for samples, labels in batches:
            criterion(model(samples), labels).backward()
    print(watched.times)

    # Parameters, gradients and optimizer state by name; a storage that several tensors share is there once.
    print(sweeprof.live_tensors(model, optimizer)[:5])
    return profiler


if __name__ == "__main__":
    main()
