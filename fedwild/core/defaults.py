"""The methods that run when the user names none: the only names of methods outside of methods/ and results/papers."""

DEFAULT_METHOD = "fedavg"
"""The method of a run."""
DEFAULT_WELCOME = "gains"
"""The method that welcomes a newcomer."""
