"""The exceptions of mithridate: one base class, a few children, each for one kind of remedy."""


class MithridateError(Exception):
    """Base of every error that mithridate raises on purpose; the command line turns it into one sentence."""


class ConfigError(MithridateError, ValueError):
    """An argument is outside its range or does not fit the others; the message names the remedy."""


class UnsupportedMechanismError(MithridateError, ValueError):
    """A method cannot account for this mechanism; the message names one that can."""


class ArtifactError(MithridateError, ValueError):
    """A file cannot be read as what it should be: missing, truncated, foreign, or lacking an array."""


class TamperedError(ArtifactError):
    """A file is one of ours, but its content is not what was written."""


class NumericalError(MithridateError, ArithmeticError):
    """The arithmetic could not give an answer that is safe to use."""


class ClusterError(MithridateError, RuntimeError):
    """Workers of a cluster failed again and again; what was finished before is kept."""
