"""Where clients run: engines take jobs to clients and return their answers, without knowing any method by name."""
