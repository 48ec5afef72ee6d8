"""Parameters and multiply-accumulates (MACs) of the zoo, written out by hand: one line per layer that has any.

Convolution: MACs = outputs · height · width · (inputs · kernel · kernel). Linear: MACs = outputs · inputs.
Biases, BatchNorm, activations, pooling and additions are no MACs. A BatchNorm has a scale and a shift per channel;
its running statistics are no parameters.
"""

PARAMS = {
    "lenet5": (
        6 * (1 * 5 * 5) + 6  # conv1
        + 16 * (6 * 5 * 5) + 16  # conv2
        + 120 * (16 * 5 * 5) + 120  # conv3
        + 84 * 120 + 84  # linear1
        + 10 * 84 + 10  # linear2
    ),
    "mlp": (
        128 * (1 * 32 * 32) + 128  # linear1
        + 64 * 128 + 64  # linear2
        + 10 * 64 + 10  # linear3
    ),
    "digits_resnet": (
        16 * (1 * 3 * 3) + 2 * 16  # conv1, bn1
        + 16 * (16 * 3 * 3) + 2 * 16  # stage1: conv1, bn1
        + 16 * (16 * 3 * 3) + 2 * 16  # stage1: conv2, bn2
        + 32 * (16 * 3 * 3) + 2 * 32  # stage2: conv1, bn1
        + 32 * (32 * 3 * 3) + 2 * 32  # stage2: conv2, bn2
        + 32 * (16 * 1 * 1) + 2 * 32  # stage2: shortcut
        + 64 * (32 * 3 * 3) + 2 * 64  # stage3: conv1, bn1
        + 64 * (64 * 3 * 3) + 2 * 64  # stage3: conv2, bn2
        + 64 * (32 * 1 * 1) + 2 * 64  # stage3: shortcut
        + 10 * 64 + 10  # linear
    ),
}  # fmt: skip

MACS = {
    "lenet5": (
        6 * 28 * 28 * (1 * 5 * 5)  # conv1
        + 16 * 10 * 10 * (6 * 5 * 5)  # conv2
        + 120 * 1 * 1 * (16 * 5 * 5)  # conv3
        + 84 * 120  # linear1
        + 10 * 84  # linear2
    ),
    "mlp": (
        128 * (1 * 32 * 32)  # linear1
        + 64 * 128  # linear2
        + 10 * 64  # linear3
    ),
    "digits_resnet": (
        16 * 32 * 32 * (1 * 3 * 3)  # conv1
        + 16 * 32 * 32 * (16 * 3 * 3)  # stage1: conv1
        + 16 * 32 * 32 * (16 * 3 * 3)  # stage1: conv2
        + 32 * 16 * 16 * (16 * 3 * 3)  # stage2: conv1
        + 32 * 16 * 16 * (32 * 3 * 3)  # stage2: conv2
        + 32 * 16 * 16 * (16 * 1 * 1)  # stage2: shortcut
        + 64 * 8 * 8 * (32 * 3 * 3)  # stage3: conv1
        + 64 * 8 * 8 * (64 * 3 * 3)  # stage3: conv2
        + 64 * 8 * 8 * (32 * 1 * 1)  # stage3: shortcut
        + 10 * 64  # linear
    ),
}
"""Per image; times the batch size for a batch."""
