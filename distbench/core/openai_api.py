"""
The OpenAI API as this project speaks it (floor F1): requests out, answers in. The parts live in the modules named here.
"""

from distbench.core.answer import Answer
from distbench.core.openai_answer import AnswerReader, read_answer, token_seen
from distbench.core.openai_errors import is_context_overflow, parse_retry_after
from distbench.core.openai_request import RequestEncoder, extra_body_problems
from distbench.core.openai_template import TemplateFinder

__all__ = [
    "Answer",
    "AnswerReader",
    "RequestEncoder",
    "TemplateFinder",
    "extra_body_problems",
    "is_context_overflow",
    "parse_retry_after",
    "read_answer",
    "token_seen",
]
