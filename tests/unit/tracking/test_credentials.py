"""No password is left in what is shown, and nothing else is taken out of it."""

from __future__ import annotations

import io
import json
import logging
import traceback
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine

from support.command import call_command
from support.misbehaving import misbehaving
from support.plans import fake_plan, sweep_folder
from support.sent import mlflow_settings
from sweeprof import credentials
from sweeprof.cli.common import print_error
from sweeprof.config.override_syntax import quoted
from sweeprof.config.schema import constraint_problems
from sweeprof.credentials import redacted_address, redacted_message, remember, without_credentials
from sweeprof.errors import Problem, UserError
from sweeprof.run.tracker_process import keep_config, trouble_of, viewing_command
from sweeprof.text import guard_output, stored
from sweeprof.tracking import MLFLOW

LEFT, RIGHT = "QJXZ", "WVKB"
"""The ends of each password: no part of it may be left, wherever a parser divides it."""
ODD = st.text(
    st.sampled_from(" \t\n'\"<>\\^|`#/?@:%&=+,;{}[]()$!~0159äß€\u2028") | st.characters(codec="utf-8"), max_size=6
)
ADDRESSES = st.builds(
    "{}://{}:{}{}{}@127.0.0.1:9/{}".format,
    st.sampled_from(["http", "https", "postgresql", "postgresql+psycopg", "mysql+pymysql"]),
    *[
        st.sampled_from(["me", "", "a b", "u'v", "u/v"]),
        st.just(LEFT),
        ODD,
        st.just(RIGHT),
        st.sampled_from(["", "db", "db?x=y"]),
    ],
)


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


def forget() -> None:
    """Forget the secrets of earlier addresses, which would hide the parts of this one."""
    credentials._users.clear()
    credentials._secrets.clear()


def leaks(text: str) -> bool:
    return LEFT in text or RIGHT in text


@given(address=ADDRESSES)
@settings(deadline=None)
def test_an_address_is_shown_without_its_password_whether_or_not_it_can_be_parsed(address: str) -> None:
    forget()
    assert not leaks(redacted_address(address))
    assert not leaks(redacted_address(f"tracking.uri={quoted(address)}"))
    assert not leaks(str(constraint_problems({"tracking": {"uri": address}})))
    assert redacted_address(redacted_address(address)) == redacted_address(address)


@given(address=ADDRESSES)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_file_or_command_about_the_tracker_has_the_password(address: str, tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "out" / "test" / "1", fake_plan({"a": {}}))
    folder.tracking.unlink(missing_ok=True)
    keep_config(folder, {"_target_": MLFLOW, "uri": address})
    assert not leaks(folder.tracking.read_text())
    assert not leaks(viewing_command(folder, address))
    folder.tracking.unlink()


@given(address=ADDRESSES)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_message_has_the_password_in_any_spelling(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    forget()
    remember(address)
    user = address.partition("//")[2].rpartition("@")[0]
    password = user.partition(":")[2]
    plain = urllib.parse.unquote(password)
    forms = [address, user, password, plain, repr(address), json.dumps(address), " ".join(address.split())]
    forms += [f"host {plain!r}", urllib.parse.quote(password, safe=""), urllib.parse.quote(plain, safe=" +")]
    forms += [*password.split("@"), *password.split("/")]
    for form in forms:
        message = f"cannot use {form}, says the server"
        assert not leaks(redacted_message(message)), form
        assert not leaks(trouble_of(OSError(message))), form
        assert not leaks(stored(message)), form
        print_error(UserError([Problem("tracking.uri", form, "is not an address.")]))
    assert not leaks("".join(capsys.readouterr()))


@pytest.mark.slow
@given(address=ADDRESSES)
@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_command_that_was_given_the_address_prints_nothing_of_the_password(address: str, tmp_path: Path) -> None:
    for value in (quoted(address), f'"{address}"', address):
        forget()
        ran = call_command(tmp_path, "model=fake", "backend=fake", f"tracking.uri={value}", "dry_run=true")
        assert not leaks(ran.out + ran.err), (value, ran.err)
    for words in (
        ["sync", "unsent", f"uri={address}"],
        ["doctor", "--nonsense", address],
        [f"compare.baseline={address}"],
    ):
        forget()
        ran = call_command(tmp_path, *words)
        assert not leaks(ran.out + ran.err), (words, ran.err)


def test_the_errors_of_a_library_have_no_password() -> None:
    address = f"postgresql+psycopg://me:{LEFT}%2F%40{RIGHT}@127.0.0.1:9/db"
    remember(address)
    with pytest.raises(Exception, match="connect") as raised:
        create_engine(address, connect_args={"connect_timeout": 2}).connect()
    text = (
        "".join(traceback.format_exception(raised.value))
        + f"password {LEFT}/@{RIGHT} of {create_engine(address).url!r}"
    )
    assert not leaks(redacted_message(text))


def test_a_log_and_a_traceback_have_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"http://me:{LEFT} <{RIGHT}@host"
    remember(address)
    stream, factory = io.StringIO(), logging.getLogRecordFactory()
    monkeypatch.setattr("sys.stderr", stream)
    try:
        guard_output()
        import sys

        print(f"Traceback: {address!r}", file=sys.stderr)
        record = logging.getLogRecordFactory()("x", logging.WARNING, "x", 1, "at %s", (address,), None)
    finally:
        logging.setLogRecordFactory(factory)
    assert not leaks(stream.getvalue() + record.getMessage())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "password"),
    [
        *(
            ("http", one)
            for one in (f"{LEFT}!{RIGHT}", f"{LEFT}<{RIGHT}", f"1#{LEFT}", f"12/{RIGHT}", f"{LEFT}@{RIGHT}")
        ),
        ("http that hangs up", f"{LEFT};{RIGHT}%40"),
        ("postgresql", f"{LEFT};{RIGHT}%40"),
    ],
)
def test_a_sweep_writes_no_password(server: str, password: str, tmp_path: Path) -> None:
    forget()
    words = ["model=fake", "backend=fake", "metrics.select=[params/total]"]
    with misbehaving("closes") as hangs_up, mlflow_settings(max_retries=1):
        host = urllib.parse.urlsplit(hangs_up).netloc if server == "http that hangs up" else "127.0.0.1:9"
        address = f"{server.partition(' ')[0]}://me:{password}@{host}"
        ran = call_command(tmp_path, *words, f"tracking.uri={quoted(address)}")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not leaks(ran.out + ran.err + "".join(path.read_text(errors="replace") for path in files))
