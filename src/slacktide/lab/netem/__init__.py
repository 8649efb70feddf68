"""Emulates a network link: a proxy between client and server carries bytes at a trace's rate.

The proxy delays bytes and knows no requests. In simulations, where nothing is sent,
`slacktide.lab.workloads` computes the delay of each request.
"""

from slacktide.lab.netem.process import LinkError as LinkError
from slacktide.lab.netem.process import LinkProcess as LinkProcess
from slacktide.lab.netem.timer_queue import TimerQueue as TimerQueue
