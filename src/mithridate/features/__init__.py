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

from mithridate.features._encoder import Encoder, about_encoder, encoder, encoder_names, from_dict, pick_encoder
from mithridate.features.frozen import Frozen
from mithridate.features.gradients import LayeredGradients, ObjectGradients, OrientedGradients, PhotoGradients
from mithridate.features.tables_and_text import HashedNgrams, UnitNorm
from mithridate.features.words import HashedWords

NAMES = encoder_names()

__all__ = [
    "NAMES",
    "Encoder",
    "Frozen",
    "HashedNgrams",
    "HashedWords",
    "LayeredGradients",
    "ObjectGradients",
    "OrientedGradients",
    "PhotoGradients",
    "UnitNorm",
    "about_encoder",
    "encoder",
    "from_dict",
    "pick_encoder",
]
