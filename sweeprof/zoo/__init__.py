"""The zoo: three small digit classifiers that exist in torch and in Keras 3 with the same trained weights.

Each module (``lenet5``, ``mlp``, ``digits_resnet``) has two builders, ``torch_model`` and ``keras_model``, that import
their framework only when called. A model takes the images of :class:`sweeprof.datasets.digits.Digits`, in torch
channels-first ``(batch, 1, 32, 32)`` and in Keras channels-last ``(batch, 32, 32, 1)``, and returns logits
``(batch, 10)``.
The torch models come in training mode, as torch builds them: call ``eval()`` before inference.

One file per model, ``weights/<name>.safetensors``, serves both frameworks. To retrain all three (a few minutes on two
CPU cores), which overwrites those files:

    python -m sweeprof.zoo.train
"""
