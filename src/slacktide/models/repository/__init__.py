"""Model folders: which models there are, which versions, and what their owners want of them.

Reads `slacktide.yaml` and Triton's `config.pbtxt`, finds files, keeps profiles, stages uploads. It
knows nothing of event loops, sockets or workers, and opens ONNX files only to check them.
"""
