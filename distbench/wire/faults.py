"""
Failures of the wire in the words of the records (floor F2): the one place where errno, resolver and TLS errors are translated.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator

from distbench.core.records import MAX_ERROR_TEXT, ErrorKind

_OWN_LIMITS = {
    errno.EMFILE: (ErrorKind.CLIENT_FD_LIMIT, "this client ran out of file descriptors (ulimit -n)"),
    errno.ENFILE: (ErrorKind.CLIENT_FD_LIMIT, "this machine ran out of file descriptors"),
    errno.EADDRNOTAVAIL: (ErrorKind.CLIENT_PORTS, "this client ran out of local ports"),
    errno.ENOBUFS: (ErrorKind.CLIENT_LIMIT, "this client's kernel ran out of socket buffers"),
    errno.ENOMEM: (ErrorKind.CLIENT_LIMIT, "this client's machine ran out of memory"),
}
_RESETS = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ESHUTDOWN})


class WireFault(Exception):
    """
    A failure with its word, on its way from where it was seen to the Exchange that records it.

    Attributes:
        kind: Word of the record.
        text: One sentence for people, at most MAX_ERROR_TEXT characters.
    """

    def __init__(self, kind: ErrorKind, text: str) -> None:
        self.kind = kind
        self.text = text[:MAX_ERROR_TEXT]
        super().__init__(self.text)

    def __reduce__(self) -> tuple[type[WireFault], tuple[ErrorKind, str]]:
        return type(self), (self.kind, self.text)


def connecting_fault(error: BaseException, where: str) -> WireFault:
    """
    Translate what went wrong before a request could be sent.

    Args:
        error: Anything that connecting raises; causes are searched too, since libraries wrap them.
        where: The other end, "host:port", for the text.
    """
    for each in _with_causes(error):
        if isinstance(each, WireFault):
            return each
        if isinstance(each, ssl.SSLError):
            return tls_fault(each, where)
        if isinstance(each, socket.gaierror):
            return WireFault(ErrorKind.CONNECT, f"cannot resolve {where}: {each.strerror or each}")
        if isinstance(each, OSError) and each.errno in _OWN_LIMITS:
            kind, text = _OWN_LIMITS[each.errno]
            return WireFault(kind, text)
        if isinstance(each, OSError) and each.errno == errno.ETIMEDOUT:
            return WireFault(
                ErrorKind.CONNECT_TIMEOUT, f"cannot connect to {where}: the network gave up waiting"
            )
        if isinstance(each, OSError) and each.errno is not None:
            return WireFault(ErrorKind.CONNECT, f"cannot connect to {where}: {_reason(each)}")
    return WireFault(ErrorKind.CONNECT, f"cannot connect to {where}: {_first_line(error)}")


def connection_fault(error: BaseException) -> WireFault:
    """Translate what a socket raised while a request was under way."""
    for each in _with_causes(error):
        if isinstance(each, WireFault):
            return each
        if isinstance(each, ssl.SSLError):
            return WireFault(ErrorKind.TLS, f"TLS failed: {_tls_reason(each)}")
        if isinstance(each, OSError) and each.errno in _OWN_LIMITS:
            kind, text = _OWN_LIMITS[each.errno]
            return WireFault(kind, text)
        if isinstance(each, OSError) and each.errno in _RESETS:
            return WireFault(ErrorKind.RESET, "the connection was reset by the server")
        if isinstance(each, OSError) and each.errno is not None:
            return WireFault(ErrorKind.RESET, f"the connection broke: {_reason(each)}")
    return WireFault(ErrorKind.RESET, f"the connection broke: {_first_line(error)}")


def tls_fault(error: ssl.SSLError, where: str) -> WireFault:
    """Translate a failed TLS handshake; the text holds the certificate's own reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message or _tls_reason(error)
        return WireFault(
            ErrorKind.TLS,
            f"the certificate of {where} was not accepted: {reason} (--ca-file FILE or --insecure)",
        )
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return WireFault(ErrorKind.TLS, f"{where} closed the connection during the TLS handshake")
    reason = _tls_reason(error)
    if error.reason in (
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
        "RECORD_LAYER_FAILURE",
    ):
        return WireFault(ErrorKind.TLS, f"{where} does not speak TLS; use http:// ({reason})")
    return WireFault(ErrorKind.TLS, f"TLS handshake with {where} failed: {reason}")


def no_answer_fault(*, tls: bool) -> WireFault:
    """Tell of a fresh connection that the server closed without a byte."""
    hint = "" if tls else " (if the port speaks TLS, use https://)"
    return WireFault(ErrorKind.RESET, f"the server closed the connection without an answer{hint}")


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(each.exceptions)
        waiting.extend((each.__cause__, each.__context__))


def _reason(error: OSError) -> str:
    # Event loops put texts of their own into strerror; the number's text is always the same.
    return os.strerror(error.errno or 0).lower()


def _tls_reason(error: ssl.SSLError) -> str:
    return (error.reason or _first_line(error)).replace("_", " ").lower()


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
