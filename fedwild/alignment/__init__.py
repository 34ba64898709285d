"""Matching the neurons of two models of one architecture, so that they can be averaged."""

from fedwild.alignment.matching import Pieces, distance, match, moved, whole
from fedwild.alignment.solvers import Solver, assignment, entropic, sinkhorn

__all__ = ["Pieces", "Solver", "assignment", "distance", "entropic", "match", "moved", "sinkhorn", "whole"]
