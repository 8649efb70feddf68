"""`ExitError`: why a model has no early exits."""


class ExitError(ValueError):
    """A model, its ramps or their files are not what they should be. `str()` is one sentence that
    names the node, field or file, and holds no path of the machine."""
