"""What a run consists of: its settings, data and method, and the folder with everything needed to resume it."""
