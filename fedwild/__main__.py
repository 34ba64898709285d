"""`python -m fedwild`."""

from fedwild.cli import main

main()
