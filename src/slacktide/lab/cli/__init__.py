"""The verbs of `lab`. `slacktide.cli.main` names them as strings."""
