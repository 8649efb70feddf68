"""A network between a client and a server: a proxy that carries real bytes at a trace's rate.

It knows nothing of requests; what a link takes of each is computed by `slacktide.lab.workloads`.
"""

from slacktide.lab.netem.process import LinkError as LinkError
from slacktide.lab.netem.process import LinkProcess as LinkProcess
from slacktide.lab.netem.timer_queue import TimerQueue as TimerQueue
