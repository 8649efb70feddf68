"""The hand-over of batches to worker processes, and of results back. Compiled as a whole."""
