from slacktide.executors import AffinityAllocator, Confirm, Grant


class LoggedCores(AffinityAllocator):
    """Binds threads as the server does by default, and keeps what was confirmed."""

    def __init__(self) -> None:
        self.granted: dict[int, Grant] = {}

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        def keep(grant: Grant) -> None:
            self.granted[pid] = grant
            confirm(grant)

        super().grant(pid, cores, keep)

    def forget(self, pid: int) -> None:
        super().forget(pid)
        self.granted.pop(pid, None)
