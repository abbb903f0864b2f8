"""Recorded answers in the form that another client of the same request asks for."""

from gateway.answers.base import AnswerError, Facts, FailedAnswerError
from gateway.answers.forms import disassemble, examine, facts, wants_usage

__all__ = [
    "AnswerError",
    "Facts",
    "FailedAnswerError",
    "disassemble",
    "examine",
    "facts",
    "wants_usage",
]
