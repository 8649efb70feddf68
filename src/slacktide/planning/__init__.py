"""Planners: they see what the engine sees and propose plans."""
