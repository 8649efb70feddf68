"""The open-loop load generator: sends on time, whatever comes back, and judges by its own clock.

It is a client of any Open Inference Protocol server, HTTP or gRPC; it knows nothing of Slacktide's
server but the wire. What it measures becomes a `Report`, which `slacktide.lab.reports` shows.
"""
