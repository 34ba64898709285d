"""Where clients run. An engine carries jobs to clients and answers back; it knows no method by name."""
