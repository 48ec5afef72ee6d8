"""ONNX Runtime: ``adapter`` is the backend, ``exporting`` makes files of torch and Keras models, ``counting`` counts graphs."""
