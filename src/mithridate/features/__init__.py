"""Fixed encoders before a small model: images, tables and text to rows of numbers, learning nothing from the data.

Few parameters and good fixed features buy radius: the noise that training adds to the score of an input is proportional
to the norm of its features, so a feature that all inputs share costs certainty and tells the classes nothing. Hence
the two habits of this module: what is common to all rows is taken out where a constant rule can do it, and rows have
norm one.

An encoder is data-independent when every row of its output is a function of that input row alone. Then inserting,
deleting or changing r training examples changes r rows of features, and a certificate for training on the features is
one for training on the data. The encoders here keep to that bit for bit: they avoid matrix products, whose rounding can
depend on the number of rows. `docs/features.md` has the constants and what they reach.
"""

from mithridate.features._encoder import (
    BadRow,
    Encoder,
    about_encoder,
    beside,
    encoder,
    encoder_names,
    from_dict,
    is_installed,
    is_same,
    pick_encoder,
)
from mithridate.features.efficientnet import EfficientNetLite0, EfficientNetLite2
from mithridate.features.frozen import Frozen
from mithridate.features.gradients import LayeredGradients, ObjectGradients, OrientedGradients, PhotoGradients
from mithridate.features.onnx_files import MiniLM, Onnx
from mithridate.features.pretrained import Calibration, Pretrained
from mithridate.features.static_words import WordLlama
from mithridate.features.tables_and_text import HashedNgrams, UnitNorm
from mithridate.features.torch_hubs import Torchvision, Transformers
from mithridate.features.words import HashedWords

NAMES = encoder_names()

__all__ = [
    "NAMES",
    "BadRow",
    "Calibration",
    "EfficientNetLite0",
    "EfficientNetLite2",
    "Encoder",
    "Frozen",
    "HashedNgrams",
    "HashedWords",
    "LayeredGradients",
    "MiniLM",
    "ObjectGradients",
    "Onnx",
    "OrientedGradients",
    "PhotoGradients",
    "Pretrained",
    "Torchvision",
    "Transformers",
    "UnitNorm",
    "WordLlama",
    "about_encoder",
    "beside",
    "encoder",
    "from_dict",
    "is_installed",
    "is_same",
    "pick_encoder",
]
