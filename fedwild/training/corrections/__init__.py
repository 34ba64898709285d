"""Corrections of local steps and of the merge, for any objective."""

from fedwild.training.corrections.base import CORRECTIONS, ClientCorrection, Correction
from fedwild.training.corrections.moon import Moon
from fedwild.training.corrections.prox import Prox
from fedwild.training.corrections.scaffold import Scaffold
