"""Run folders: everything a run leaves behind, and everything it needs to go on."""
