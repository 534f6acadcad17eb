"""Checks of the network, step by step, to show which one fails: name, port, TLS, login."""

from __future__ import annotations

import email.utils
import http.client
import queue
import socket
import ssl
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from edge_agent.config.brokers import BrokerPlace
from edge_agent.config.settings import Config
from edge_agent.doctor.check_result import CheckResult, failure, ok, warning
from edge_agent.errors import ConfigError
from edge_agent.storage.broker_address import require_place
from edge_agent.storage.credentials import login, pinned_server, read_credentials
from edge_agent.transport.server_connection import ServerConnection, certificate_todo, tls_context

WAIT_S = 5.0
CLOCK_WARNING_S, CLOCK_FAILURE_S = 5.0, 60.0


def reach(what: str, host: str, port: int, todo: str) -> Iterator[CheckResult]:
    """Look up a name and connect; the last result is a failure if the port can't be reached."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield failure(f"{what}: name", f"can't find {host}: {error.strerror or error}", f"{todo}; check the DNS")
        return
    yield ok(f"{what}: name", f"{host} is {found[0][4][0]}")
    try:
        socket.create_connection((host, port), WAIT_S).close()
    except OSError as error:
        words = error.strerror or str(error) or type(error).__name__
        yield failure(
            f"{what}: port", f"{host}:{port}: {words}", f"{todo}; check that it runs and that no firewall blocks it"
        )
        return
    yield ok(f"{what}: port", f"{host}:{port} is open")


def shake_hands(what: str, host: str, port: int, context: ssl.SSLContext) -> CheckResult:
    """Start TLS and check the certificate."""
    try:
        with (
            socket.create_connection((host, port), WAIT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as s,
        ):
            version, certificate = s.version(), s.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        todo = "set ca_file to the authority that signed it, and use a name that is in it"
        message = f"the certificate can't be verified: {error.verify_message}"
        return failure(f"{what}: TLS", message, certificate_todo(error, todo))
    except OSError as error:
        return failure(f"{what}: TLS", f"no TLS: {error.strerror or error}", "check that this is the TLS port")
    days = (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) / 86_400
    if days < 14:
        return warning(f"{what}: TLS", f"the certificate expires in {days:.0f} days", "renew it on the server")
    return ok(f"{what}: TLS", f"{version}, certificate for {days:.0f} more days")


def check_server(config: Config) -> Iterator[CheckResult]:
    """Check the server over HTTP, and compare its clock with ours."""
    url = urlsplit(config.server.url)
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    steps = list(reach("server", host, port, "check [server] url"))
    yield from steps
    if steps[-1].advice:
        return
    context = None
    if url.scheme == "https":
        try:
            context = tls_context(config.server.ca_file)
        except ConfigError as error:
            yield failure("server: TLS", str(error), "set it to a PEM file")
            return
        yield (hands := shake_hands("server", host, port, context))
        if hands.level == "failure":
            return
    connection = ServerConnection(config.server.url, WAIT_S, config.server.ca_file)
    try:
        answer = connection.begin("GET", "/healthz", None, {})
    except (OSError, http.client.HTTPException) as error:
        yield failure("server", f"no answer: {error}", "check [server] url")
        return
    finally:
        connection.close()
    status, date = answer.status, answer.getheader("Date")
    if status >= http.client.MULTIPLE_CHOICES:
        yield failure("server", f"/healthz answers {status} {answer.reason}", "check [server] url, ask the operator")
        return
    yield ok("server", f"/healthz answers {status}")
    if date:
        yield _compared(date)


def _compared(date: str) -> CheckResult:
    try:
        away_s = time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return warning("clock: server", f"the server's date is {date!r}", "compare the clocks yourself")
    words = f"this clock is {abs(away_s):.0f} s {'ahead of' if away_s > 0 else 'behind'} the server's"
    todo = "enable NTP: timedatectl set-ntp true"
    if abs(away_s) > CLOCK_FAILURE_S:
        return failure("clock: server", words, todo)
    return warning("clock: server", words, todo) if abs(away_s) > CLOCK_WARNING_S else ok("clock: server", words)


def check_messages(config: Config, *, running: bool) -> Iterator[CheckResult]:
    """Check the transport of messages: the broker, or the server with the device's key."""
    if config.server.transport == "http":
        yield ok("broker", "not used: [server] transport is http")
    else:
        yield from check_broker(config, running=running)
    if config.server.transport != "mqtt":
        yield _key_opens(config)


def _key_opens(config: Config) -> CheckResult:
    """Request a nonexistent model, which a valid key answers with 404."""
    todo = "enrol the device: HTTP transport needs enrolment"
    try:
        known = read_credentials(config.agent.data_dir)
    except ConfigError as error:
        return failure("server: key", str(error), "enrol the device again")
    headers = {"Authorization": f"Bearer {known.api_key}"} if known else {}
    try:
        answer = ServerConnection(config.server.url, WAIT_S, config.server.ca_file).request(
            "GET", f"/v1/blobs/{'0' * 64}", None, headers
        )
    except (OSError, ConfigError, http.client.HTTPException) as error:
        return failure("server: key", f"no answer: {error}", "check [server] url")
    if answer.status == http.client.NOT_FOUND:
        return ok("server: key", "the server accepts this device's key")
    return failure("server: key", f"the server rejects it: {answer.reason}", todo)


def check_broker(config: Config, *, running: bool) -> Iterator[CheckResult]:
    """Check the broker, up to the login, without disconnecting a running agent of the same name."""
    folder = config.agent.data_dir
    try:
        if config.broker.host is None and pinned_server(folder) and read_credentials(folder) is None:
            message = "the operator hasn't approved this device yet; the server names the broker then"
            yield warning("broker", message, "ask the operator to approve it, then start the agent")
            return
        settings = require_place(config)
    except ConfigError as error:
        yield failure("broker", str(error), "set [broker] host, or enrol again once the server names its broker")
        return
    steps = list(reach("broker", settings.host, settings.port, "check [broker] host and port"))
    yield from steps
    if steps[-1].advice:
        return
    context = None
    if settings.tls:
        try:
            context = ssl.create_default_context(cafile=settings.ca_file)
        except OSError as error:
            yield failure("broker: TLS", f"[broker] ca_file {settings.ca_file}: {error}", "set it to a PEM file")
            return
        yield (hands := shake_hands("broker", settings.host, settings.port, context))
        if hands.level == "failure":
            return
    if running:
        yield ok("broker", "the agent is running; `status` says whether it is connected")
        return
    yield _check_http_access(config, settings, context)


def _check_http_access(config: Config, place: BrokerPlace, context: ssl.SSLContext | None) -> CheckResult:
    try:
        who = login(config.broker, read_credentials(config.agent.data_dir), config.agent.device)
    except ConfigError as error:
        return failure("broker", str(error), "enrol the device again")
    # uses the agent's session unchanged: subscribes to nothing, and takes no waiting message
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id=who.username or who.client_id, clean_session=False, manual_ack=True
    )
    if who.username is not None:
        client.username_pw_set(who.username, who.password)
    if context is not None:
        client.tls_set_context(context)
    codes: queue.SimpleQueue[ReasonCode] = queue.SimpleQueue()
    client.on_connect = lambda _client, _data, _flags, code, _more: codes.put(code)
    try:
        client.connect(place.host, place.port, 30)
        client.loop_start()
        code = codes.get(timeout=WAIT_S)
    except OSError as error:
        return failure("broker", f"it closed the connection: {error}", "check that this is an MQTT broker's port")
    except queue.Empty:
        return failure("broker", f"no answer within {WAIT_S:.0f} s", "check that this is an MQTT broker's port")
    finally:
        client.disconnect()
        client.loop_stop()
    name = who.username or "anonymous"
    if code.is_failure:
        return failure("broker", f"it rejects {name}: {code}", "enrol the device, or check [broker] username")
    return ok("broker", f"it accepts {name}")
