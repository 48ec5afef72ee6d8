"""Keras models, whatever Keras runs on: counted over shapes. The folders of the backends that run them use this one.

``counting`` is the entrance. A ``walk`` calls the model on symbolic tensors and sees every layer and every operation of
``keras.ops``; ``costs`` says what an operation costs; ``standins`` computes in ``keras.ops`` what some layers compute otherwise.
"""
