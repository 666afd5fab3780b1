"""What can be wrong with a model on disk. All of them end the start of an executor; the message names the culprit, never a path.

ModelError
├── UnsupportedModel       an architecture, a scaling, a tokenizer that this executor does not know
└── TensorMismatch         a tensor that is missing, left over or of another shape
"""

from drumline.errors import Internal


class ModelError(Internal):
    """The model cannot be served."""


class UnsupportedModel(ModelError):
    """The model asks for something that is not implemented; the message names it and what is."""


class TensorMismatch(ModelError):
    """The weights are not those that the configuration describes."""
