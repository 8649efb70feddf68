"""A client of video streams: each frame at a size that can be on time, one outcome for each.

Importing it loads neither the server nor grpcio, OpenCV or ONNX Runtime.
"""
