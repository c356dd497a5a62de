"""Base URLs: what users type, and what it means."""

import pytest

from distbench.core.urls import display_url, endpoint_url, normalize_base_url, server_root

SAME = [
    ("http://h:1", "http://h:1/v1"),
    ("http://h:1/", "http://h:1/v1"),
    ("http://h:1/v1", "http://h:1/v1"),
    ("http://h:1/v1/", "http://h:1/v1"),
    ("http://h:1//v1//", "http://h:1/v1"),
    ("http://h:1/api/v1", "http://h:1/api/v1"),
    ("http://h:1/api", "http://h:1/api/v1"),
    ("http://h:1/av1", "http://h:1/av1/v1"),
    ("http://h:1/v1/openai", "http://h:1/v1/openai/v1"),
    ("HTTP://Host.Example:80", "http://host.example/v1"),
    ("https://h:443/", "https://h/v1"),
    ("https://h:80", "https://h:80/v1"),
    ("  http://h:1  ", "http://h:1/v1"),
    ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ("http://[FE80::1]", "http://[fe80::1]/v1"),
    ("http://h_1.svc.cluster.local:1", "http://h_1.svc.cluster.local:1/v1"),
    ("http://b\u00fccher.example", "http://xn--bcher-kva.example/v1"),
    ("http://h/team%20a", "http://h/team%20a/v1"),
]


@pytest.mark.parametrize(("typed", "expected"), SAME)
def test_base_url_means_the_v1_below_its_path(typed: str, expected: str) -> None:
    """/v1 is appended unless the last whole segment is v1 (C50); equal targets give equal texts."""
    assert normalize_base_url(typed) == expected
    assert normalize_base_url(expected) == expected


BAD = [
    ("", "empty"),
    ("h:8000", "http://"),
    ("127.0.0.1:8000/v1", "http://"),
    ("ftp://h", "http://"),
    ("http://", "host"),
    ("http://:8000", "host"),
    ("http://h:port", "Port"),
    ("http://h:99999", "ort"),
    ("http://h:0", "port 0"),
    ("http://h/v1?x=1", "extra-body"),
    ("http://h/v1#top", "without ? or #"),
    ("http://h a", "space"),
    ("http://h\n", ""),
    ("http://h/v1/chat/completions", "base URL"),
    ("http://h/v1/completions/", "base URL"),
    ("http://[::zz]:1", ""),
    ("http://-bad-", "host name"),
    ("http://a..b%", "host name"),
]


@pytest.mark.parametrize(("typed", "word"), [row for row in BAD if row[0] != "http://h\n"])
def test_bad_url_is_refused_with_one_sentence(typed: str, word: str) -> None:
    """A URL that cannot be meant is refused, and the text says what to write."""
    with pytest.raises(ValueError) as caught:
        normalize_base_url(typed)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "typed",
    [
        "http://user:s3cret@h:1",
        "https://s3cret@h/v1",
        "user:s3cret@h",
        "http://u:s3cret/x@h/",
        "http://u:s3cret?x@h/",
    ],
)
def test_credentials_are_refused_and_never_shown(typed: str) -> None:
    """A key in the URL is pointed to --api-key-env and appears in no message (C57)."""
    with pytest.raises(ValueError) as caught:
        normalize_base_url(typed)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in display_url(typed)


def test_endpoints_and_root_hang_where_they_belong() -> None:
    """Endpoints hang on the base, /metrics and /health on the server's root, whatever the prefix (C50)."""
    base = normalize_base_url("http://h:1/api")
    assert endpoint_url(base, "chat") == "http://h:1/api/v1/chat/completions"
    assert endpoint_url(base, "completions") == "http://h:1/api/v1/completions"
    assert server_root(base) == "http://h:1"
    assert server_root("https://[::1]:8/v1") == "https://[::1]:8"
