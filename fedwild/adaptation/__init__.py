"""What a newcomer brings, and how its model and the federation's become one (Gains)."""
