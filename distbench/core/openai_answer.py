"""
What an answer of an OpenAI-compatible server means: its tokens and their times, its counts, its failure (floor F1, pure).

The rules in short. A chunk is a token's where it brings text, reasoning, a refusal, a part of a tool call, or token ids; a chunk
with a role, an empty text or only a finish reason is none. Counts come from the server's usage, the last one told, where there is
one. A stream has ended well where its framing has, and the server said so: [DONE], a finish reason or a final usage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distbench.core.answer import Answer
from distbench.core.content_coding import CodingError, DecodedTooLong, Decoder, coding_of, decoder_for
from distbench.core.openai_chunks import NotJson, decode_chunk
from distbench.core.openai_errors import body_text, clean_text, http_error, stream_error
from distbench.core.openai_tokens import TokenTally
from distbench.core.records import ErrorKind
from distbench.core.sse import EventTooLong, SseEvent, SseParser

_BLANK = b" \t\r\n"
_NOT_SSE_STARTS = (b"{", b"[", b"<")
_SNIPPET_BYTES = 4_096
_REFUSAL_BYTES = 2**20
_ABNORMAL_ENDS = frozenset({"error", "abort"})


def read_answer(
    *,
    status: int | None,
    headers: Mapping[str, str],
    body: Sequence[bytes],
    stamps_ns: Sequence[int],
    complete: bool,
    streaming: bool,
    repeats: Sequence[tuple[int, int]] = (),
    keep_text: bool = False,
) -> Answer:
    """
    Read a whole answer at once; AnswerReader explains the arguments and does the same in slices.

    Of the repeats, (n, k) says that behind the first n pieces came k more that differ in their text alone from one of those n and were
    not kept; by ascending n. stamps_ns holds their times too, in the order of arrival. Their text is lost to keep_text.

    Never raises, whatever the bytes are.
    """
    reader = AnswerReader(status=status, headers=headers, streaming=streaming, keep_text=keep_text)
    piece, stamp = 0, 0
    for before, count in repeats:
        reader.feed(body[piece:before], stamps_ns[stamp : stamp + before - piece])
        stamp += before - piece
        reader.feed_alike(stamps_ns[stamp : stamp + count])
        piece, stamp = before, stamp + count
    reader.feed(body[piece:], stamps_ns[stamp:])
    return reader.finish(complete=complete)


def token_seen(pieces: Sequence[bytes]) -> bool:
    """Tell whether a token-bearing chunk is among the pieces of a streamed body so far."""
    is_gzip = b"".join(pieces[:2]).startswith(b"\x1f\x8b")
    headers = {"content-encoding": "gzip"} if is_gzip else {}
    reader = AnswerReader(status=200, headers=headers, streaming=True)
    reader.feed(pieces, [0] * len(pieces))
    return reader.has_token


class AnswerReader:
    """Reads one answer; the pieces of its body may be fed in slices of any size."""

    def __init__(
        self, *, status: int | None, headers: Mapping[str, str], streaming: bool, keep_text: bool = False
    ) -> None:
        """
        Begin an answer.

        Args:
            status: Final HTTP status; None where no head came.
            headers: Names in lower case.
            streaming: Server-sent events were asked for.
            keep_text: Gather the answer's text, for a tokenizer to count.
        """
        self._status = status
        self._headers = headers
        self._streaming = streaming
        self._coding = coding_of(self._headers)
        self._fault: tuple[ErrorKind, str] | None = None
        self._decoder: Decoder | None = None
        if self._coding is not None:
            try:
                self._decoder = decoder_for(self._coding)
            except CodingError as error:
                self._fault = ErrorKind.PROTOCOL, str(error)
        self._is_success = status is not None and 200 <= status < 300
        self._parser: SseParser | None = SseParser() if streaming and self._is_success else None
        self._is_sniffing = self._parser is not None
        self._whole: list[bytes] = []
        self._whole_bytes = 0
        self._snippet = b""
        self._num_events = 0
        self._is_done = False
        self._last_ns: int | None = None
        self._tally = TokenTally(keep_text)

    @property
    def has_token(self) -> bool:
        """A token-bearing chunk has come."""
        return bool(self._tally.chunk_ns)

    def feed(self, pieces: Sequence[bytes], stamps_ns: Sequence[int]) -> None:
        """
        Take the next pieces of the body with their arrival times; never raises.

        Args:
            pieces: After transfer decoding; any split is the same.
            stamps_ns: Same length.
        """
        if not pieces:
            return
        self._last_ns = stamps_ns[-1]
        for piece, stamp_ns in zip(pieces, stamps_ns, strict=True):
            self._take_piece(piece, stamp_ns)

    def feed_alike(self, stamps_ns: Sequence[int]) -> None:
        """Take the arrival times of pieces that differ in their text alone from a token's chunk that was fed."""
        self._last_ns = stamps_ns[-1]
        self._num_events += len(stamps_ns)
        self._tally.take_alike(stamps_ns)

    def finish(self, *, complete: bool) -> Answer:
        """
        End the answer and say what it was; call it once.

        Args:
            complete: The body arrived whole; False keeps what came, and finds no fault in its having been cut.
        """
        if self._parser is not None and self._last_ns is not None:
            self._take_cut_event(self._parser, self._last_ns)
        elif self._is_success and not self._streaming and complete:
            self._take_whole()
        answer = self._tally.answer()
        answer.content_encoding = self._coding
        kind_and_text = self._fault or self._verdict(answer, complete)
        if kind_and_text is not None:
            answer.error_kind, text = kind_and_text
            answer.error_text = clean_text(text)
        return answer

    def _take_piece(self, piece: bytes, stamp_ns: int) -> None:
        if self._decoder is not None:
            try:
                piece = self._decoder.decode(piece)
            except CodingError as error:
                self._blame(ErrorKind.PROTOCOL, str(error))
                return
            except DecodedTooLong as error:
                self._blame(ErrorKind.CLIENT_LIMIT, str(error))
                return
        if not self._num_events and len(self._snippet) < _SNIPPET_BYTES:
            self._snippet += piece[:_SNIPPET_BYTES]
        if self._is_sniffing:
            self._sniff()
        if self._parser is None:
            if self._is_success or self._whole_bytes < _REFUSAL_BYTES:
                self._whole.append(piece)
                self._whole_bytes += len(piece)
            return
        try:
            events = self._parser.feed(piece, stamp_ns)
        except EventTooLong as error:
            self._blame(ErrorKind.CLIENT_LIMIT, str(error))
            return
        for event in events:
            self._take_event(event)

    def _sniff(self) -> None:
        """Decide by the first bytes, which cannot lie as a content type can, whether the body is a stream of events."""
        start = self._snippet.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK)
        if start:
            self._is_sniffing = False
            if start.startswith(_NOT_SSE_STARTS):
                self._parser = None

    def _take_event(self, event: SseEvent) -> None:
        self._num_events += 1
        data = event.data
        if event.name == b"error":
            self._blame(*stream_error(body_text(data) or "an error event without a text"))
        elif data.startswith(b"{"):  # by far the most
            self._take_json(data, event.stamp_ns)
        elif data.strip() == b"[DONE]":
            self._is_done = True
        elif data.strip():
            self._take_json(data, event.stamp_ns)

    def _take_json(self, data: bytes, stamp_ns: int) -> None:
        try:
            chunk = decode_chunk(data)
        except NotJson:
            self._blame(
                ErrorKind.PROTOCOL,
                f"an event of the stream is not JSON: {data[:200].decode('utf-8', 'replace')}",
            )
            return
        if chunk.error is not None:
            self._blame(*stream_error(chunk.error))
        self._tally.take(chunk, stamp_ns)

    def _take_cut_event(self, parser: SseParser, stamp_ns: int) -> None:
        """Take a last event that lacks only its blank line; what was cut within is left out."""
        try:
            event = parser.pending(stamp_ns)
            if event is not None and (event.data.strip() == b"[DONE]" or decode_chunk(event.data)):
                self._take_event(event)
        except (EventTooLong, NotJson):
            pass

    def _take_whole(self) -> None:
        body = b"".join(self._whole)
        if not body.strip(_BLANK):
            return
        try:
            chunk = decode_chunk(body)
        except NotJson:
            is_stream = body.lstrip(_BLANK).startswith((b"data:", b"event:", b":", b"id:"))
            got = "server-sent events" if is_stream else f"something else: {body_text(body)}"
            self._blame(ErrorKind.PROTOCOL, f"asked for one JSON answer, got {got}")
            return
        if chunk.error is not None:
            self._blame(*stream_error(chunk.error))
        self._tally.take_message(chunk, self._last_ns)

    def _blame(self, kind: ErrorKind, text: str) -> None:
        if self._fault is None:
            self._fault = kind, text

    def _verdict(self, answer: Answer, complete: bool) -> tuple[ErrorKind, str] | None:
        """Return what is wrong with an answer in which no error was told, or None."""
        if self._status is None:
            return None
        if not self._is_success:
            return http_error(self._status, self._headers, b"".join(self._whole))
        if not complete:
            return None
        if self._streaming and self._parser is None:
            return self._not_a_stream()
        if self._parser is not None:
            if not self._num_events:
                is_silent = self._parser.num_comments or not self._snippet.strip(_BLANK)
                return (
                    (ErrorKind.EMPTY, "the stream ended without an event")
                    if is_silent
                    else self._not_a_stream()
                )
            if not (self._is_done or self._tally.has_ended):
                return ErrorKind.TRUNCATED, "the stream ended without [DONE], finish reason or usage"
        if answer.finish_reason in _ABNORMAL_ENDS:
            return (
                ErrorKind.STREAM_ERROR,
                f"the server ended the answer with finish_reason {answer.finish_reason!r}",
            )
        if not self._tally.has_output and not answer.completion_tokens:
            return ErrorKind.EMPTY, f"an answer without a token (finish_reason {answer.finish_reason})"
        return None

    def _not_a_stream(self) -> tuple[ErrorKind, str]:
        body = b"".join(self._whole) or self._snippet
        try:
            chunk = decode_chunk(body)
        except NotJson:
            pass
        else:
            if chunk.error is not None:
                return stream_error(chunk.error)
        kind = self._headers.get("content-type", "no content type")
        return ErrorKind.NOT_SSE, f"asked for a stream, got {kind}: {body_text(body)}"
