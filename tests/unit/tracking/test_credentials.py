"""No password is left in what is shown, and nothing else is taken out of it."""

from __future__ import annotations

import pytest

from sweeprof.credentials import without_credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:secret@host:5000/x", "http://***@host:5000/x"),
        ("https://me@host", "https://***@host"),
        ("http://:secret@host", "http://***@host"),
        ("postgresql://me:sec@ret@host/db", "postgresql://***@host/db"),
        ("postgresql+psycopg2://me:sec/ret@host:5432/db", "postgresql+psycopg2://***@host:5432/db"),
        (
            "postgresql://host/db?user=me&password=secret&sslmode=x",
            "postgresql://host/db?user=me&password=***&sslmode=x",
        ),
        ("http://host?access_token=secret#top", "http://host?access_token=***#top"),
        ("http://host/?API_KEY=secret", "http://host/?API_KEY=***"),
        ("at http://a:secret@h,http://b:secret@i and ftp://c:secret@j", "at http://***@h,http://***@i and ftp://***@j"),
        ('{"uri": "http://me:secret@host", "mail": "a@b"}', '{"uri": "http://***@host", "mail": "a@b"}'),
    ],
)
def test_passwords_are_taken_out(text: str, shown: str) -> None:
    assert without_credentials(text, "***@") == shown
    assert without_credentials(text) == shown.replace("***@", "")


@pytest.mark.parametrize(
    "text",
    [
        "http://host:80/a@b",
        "http://host/a:b@c",
        "http://host:5000?x=a@b",
        "http://[::1]:5000/a@b",
        "mapbox://sprites/x@2x",
        "token ? a?token=b:c;token=d",
        "file:///x@y",
        r'"http://host:\nfoo@bar"',
        "git@host:me/it.git",
    ],
)
def test_the_rest_is_left_alone(text: str) -> None:
    assert without_credentials(text) == text


def test_the_library_within_a_report_passes_unchanged() -> None:
    from plotly.offline import get_plotlyjs

    script = get_plotlyjs()
    assert without_credentials(script) == script
