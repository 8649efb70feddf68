"""`FairQueue`: a queue that serves clients in turn."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue that serves clients in turn."""

    def __init__(self) -> None:
        self.queues: OrderedDict[str, deque[T]] = OrderedDict()
        """Non-empty queues by client."""

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def __bool__(self) -> bool:
        return bool(self.queues)

    def push(self, client: str, item: T) -> None:
        self.queues.setdefault(client, deque()).append(item)

    def pop(self) -> tuple[str, T]:
        """Remove the next client's first item. Raises KeyError if the queue is empty."""
        client, queue = self.queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self.queues[client] = queue
        return client, item
