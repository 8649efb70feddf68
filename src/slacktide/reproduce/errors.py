"""What can go wrong in a reproduction that is the caller's to mend."""


class ReproduceError(ValueError):
    """A bad argument or file; the text names it and says what was expected."""
