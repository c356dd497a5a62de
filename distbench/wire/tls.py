"""
TLS between the socket and the HTTP parser (floor F2).

The socket is read in the same way as without TLS, so that reads bear kernel stamps; the bytes go through memory buffers. Plaintext
takes the stamp of the read that completed its record.
"""

from __future__ import annotations

import functools
import ssl

_RECORD_BYTES = 65_536


@functools.lru_cache(maxsize=8)
def client_context(ca_file: str | None, insecure: bool) -> ssl.SSLContext:
    """
    Return the context for these settings, made once: loading the system's roots takes milliseconds and a megabyte.

    Raises:
        OSError, ssl.SSLError: ca_file cannot be read or holds no certificate.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


class TlsPipe:
    """Both directions of one TLS connection, without a socket."""

    __slots__ = ("_incoming", "_object", "_outgoing", "closed")

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self.closed = False

    def handshake_step(self, received: bytes) -> tuple[bool, bytes]:
        """
        Go on with the handshake.

        Args:
            received: What came from the peer since the last step; empty for the first.

        Returns:
            Whether the handshake is done, and the bytes to send to the peer.

        Raises:
            ssl.SSLError: the handshake failed.
        """
        if received:
            self._incoming.write(received)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False, self._outgoing.read()
        return True, self._outgoing.read()

    def pending_output(self) -> bytes:
        """Return what waits to be sent, such as the alert behind a failed handshake."""
        return self._outgoing.read()

    def end_of_input(self) -> None:
        """Tell that the peer sends no more."""
        self._incoming.write_eof()

    def encrypt(self, plain: bytes) -> bytes:
        """Return the records that carry these bytes."""
        self._object.write(plain)
        return self._outgoing.read()

    def decrypt(self, received: bytes) -> bytes:
        """
        Return the plaintext of all records that these bytes complete; empty where none is.

        Raises:
            ssl.SSLError: a record is broken.
        """
        incoming, read = self._incoming, self._object.read
        incoming.write(received)
        pieces: list[bytes] = []
        try:
            # Asking again only while input is left spares the exception that ends the usual loop.
            while incoming.pending or self._object.pending():
                piece = read(_RECORD_BYTES)
                if not piece:
                    self.closed = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.closed = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
