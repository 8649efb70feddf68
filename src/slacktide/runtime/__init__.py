"""What both drivers own: the engine with its planners. Events and `now` in, commands out."""
