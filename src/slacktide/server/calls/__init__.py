"""Calls, from their headers to their answers, and the driver of the engine. Compiled as a whole."""
