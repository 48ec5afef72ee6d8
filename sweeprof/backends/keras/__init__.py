"""Keras models, whatever Keras runs on: counted over shapes. The folders of the backends that run them use this one.

``counting`` is the entrance. A ``trace`` calls the model on symbolic tensors and sees every layer and every operation of
``keras.ops``; ``costs`` has the cost of each operation; ``layer_overrides`` computes some layers by ``keras.ops``.
"""
