"""From a folder to a model that serves: reading, checking, profiling, loading, laying out."""
