"""What the compiled hot path offers: the same as these two."""

from distbench.wire.repeats import Repeats as Repeats
from distbench.wire.sweep import read_ready as read_ready
