"""What a method and an engine are: everything that the author of a method needs to import."""

from fedwild.contract.answering import Answering
from fedwild.contract.exhibit import (
    BarExhibit,
    CurveExhibit,
    Exhibit,
    ImageExhibit,
    MapExhibit,
    Record,
    TableExhibit,
)
from fedwild.contract.halves import Client, Replies, Reply, Server, Step
from fedwild.contract.initial import HEAD, Initial, initial_weights
from fedwild.contract.method import Discovers, Method, Traits, Welcomes
from fedwild.contract.phase import Draw, Groups, Phase, Rounds, Tensors
from fedwild.contract.predictor import Outcome, Prediction, Predictor
from fedwild.contract.task import Task, copy_tensors, weights_of
from fedwild.core.names import EVERYONE
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.core.settings import Settings

__all__ = [
    "EVERYONE",
    "HEAD",
    "Answering",
    "BarExhibit",
    "Client",
    "CurveExhibit",
    "Discovers",
    "Draw",
    "Exhibit",
    "Groups",
    "ImageExhibit",
    "Initial",
    "MapExhibit",
    "Method",
    "Outcome",
    "Payload",
    "Phase",
    "Prediction",
    "Predictor",
    "Record",
    "Replies",
    "Reply",
    "Rng",
    "Rounds",
    "Server",
    "Settings",
    "Step",
    "TableExhibit",
    "Task",
    "Tensors",
    "Traits",
    "Welcomes",
    "copy_tensors",
    "initial_weights",
    "weights_of",
]
