"""`ExitError`: why a model has no early exits."""


class ExitError(ValueError):
    """A model, its ramps or their files are invalid. The message is one sentence that names the
    node, field or file, without a path of the machine."""
