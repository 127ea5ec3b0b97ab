"""Drive the real scheduler of an engine release on CPU, without weights, under scripted circumstances."""
