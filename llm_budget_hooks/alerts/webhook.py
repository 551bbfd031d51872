"""Alerts as signed POST requests, sent by a daemon thread, retried, and never in a call's way.

A message waits in memory; what has not been sent when the process ends is lost, so a webhook is for attention and
the ledger is for the record. Names are resolved once per attempt, and the address that was checked is the one that
is connected to, so that a name cannot lead into the own network. Redirects are not followed.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import json
import logging
import os
import random
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from llm_budget_hooks.errors import ConfigurationError

SECRET_VARIABLE: Final = "LLM_BUDGET_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
_RETRIED: Final = (408, 425, 429)
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_log = logging.getLogger("llm_budget_hooks")
_all: Final[weakref.WeakSet[Webhook]] = weakref.WeakSet()
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def signature(secret: str, sent_s: int, body: bytes) -> str:
    """The value of the header ``X-LLM-Budget-Signature``: HMAC-SHA256 over ``sent_s.body``, with the time it names.

    Args:
        secret: what sender and receiver share.
        sent_s: when it was sent, in seconds since the epoch; a receiver refuses what is too old.
        body: the body as it was sent.
    """
    made = hmac.new(secret.encode(), b"%d." % sent_s + body, hashlib.sha256)
    return f"t={sent_s},v1={made.hexdigest()}"


@dataclass(frozen=True, slots=True)
class _Message:
    id: str
    body: bytes


class Webhook:
    """Sends messages to one URL. Call it with a mapping; it returns at once and never raises.

    Args:
        url: ``https://...``; ``http://`` only where private addresses are allowed.
        secret_variable: the environment variable with the secret that requests are signed with.
        allow_private: also connect to loopback, private and link-local addresses.
        timeout_s: of one network operation.
        attempts: how often a message is sent before it is given up.
        most: how many messages wait at most; further ones are dropped and counted.

    Attributes:
        dropped: how many messages were dropped or given up.

    Raises:
        ConfigurationError: the URL is none of these, or the variable is not set.
    """

    _thread: threading.Thread | None

    def __init__(
        self,
        url: str,
        *,
        secret_variable: str = SECRET_VARIABLE,
        allow_private: bool = False,
        timeout_s: float = 5.0,
        attempts: int = 6,
        most: int = 1_000,
    ) -> None:
        self._url = _checked(url, allow_private)
        secret = os.environ.get(secret_variable)
        if not secret:
            raise ConfigurationError(f"{secret_variable} is not set; it is the secret that webhooks are signed with.")
        self._secret = secret
        self._allow_private = allow_private
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._most = most
        self.dropped = 0
        self._renew()
        _all.add(self)

    def __call__(self, message: Mapping[str, Any]) -> None:
        """Send a message in the background. What JSON does not know is sent as its text."""
        try:
            body = json.dumps(message, separators=(",", ":"), default=str).encode()
        except (TypeError, ValueError, RecursionError) as error:
            self._give_up(f"it is no JSON ({type(error).__name__})")
            return
        with self._changed:
            if len(self._waiting) >= self._most:
                self.dropped += 1
                return
            self._waiting.append(_Message(os.urandom(12).hex(), body))
            self._start()
            self._changed.notify_all()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all messages are sent or given up; whether that happened in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Flush for a while and end the thread; a later message starts it again.

        Returns:
            whether nothing is left; what is left is sent if the webhook is used again.
        """
        emptied = self.flush(timeout_s)
        with self._changed:
            thread, self._thread = self._thread, None
            self._stop.set()
            self._changed.notify_all()
        if thread is not None:
            thread.join(timeout_s)
        return emptied

    def __repr__(self) -> str:
        return f"Webhook({self._url.hostname!r})"

    def _renew(self) -> None:
        self._waiting: deque[_Message] = deque()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = None

    def _start(self) -> None:
        if self._thread is not None:
            return
        self._stop = threading.Event()
        thread = threading.Thread(target=self._work, args=(self._stop,), name="llm-budget-webhook", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending
            return
        self._thread = thread

    def _work(self, stop: threading.Event) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or stop.is_set())
                if stop.is_set():
                    return
                message = self._waiting[0]
            if not self._deliver(message, stop):
                return
            with self._changed:
                if self._waiting and self._waiting[0] is message:
                    self._waiting.popleft()
                self._changed.notify_all()

    def _deliver(self, message: _Message, stop: threading.Event) -> bool:
        """Send a message until it is taken or given up; False if the webhook was closed meanwhile."""
        pause_s = _FIRST_PAUSE_S
        for attempt in range(1, self._attempts + 1):
            trouble, again = self._attempt(message)
            if not trouble:
                return True
            if not again or attempt == self._attempts:
                self._give_up(trouble)
                return True
            if stop.wait(pause_s * random.uniform(0.5, 1)):  # noqa: S311 - spreads retries, nothing secret
                return False
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        return True

    def _attempt(self, message: _Message) -> tuple[str, bool]:
        """Send once: what went wrong, empty if nothing did, and whether it may go better later."""
        try:
            status = self._post(message)
        except PermissionError as error:
            return str(error), False
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            return f"it cannot be reached ({type(error).__name__})", True
        if 200 <= status < 300:
            return "", False
        return f"it answered {status}", status >= 500 or status in _RETRIED

    def _post(self, message: _Message) -> int:
        connection = _Connection(self._url, self._timeout_s, self._allow_private)
        sent_s = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "llm_budget_hooks",
            "X-LLM-Budget-Delivery": message.id,
            "X-LLM-Budget-Signature": signature(self._secret, sent_s, message.body),
        }
        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        try:
            connection.request("POST", path, message.body, headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def _give_up(self, why: str) -> None:
        self.dropped += 1
        _log.warning("A message to the webhook at %s was given up: %s", self._url.hostname, why)


class _Connection(http.client.HTTPConnection):
    """A connection to the very address that was checked."""

    def __init__(self, url: SplitResult, timeout_s: float, allow_private: bool) -> None:
        self._tls = url.scheme == "https"
        super().__init__(url.hostname or "", url.port or (443 if self._tls else 80), timeout=timeout_s)
        self._allow_private = allow_private

    def connect(self) -> None:
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        address = found[0][4][0]
        if not self._allow_private and not all(is_public(str(where[4][0])) for where in found):
            raise PermissionError("its address is a loopback, private or link-local one, which is not allowed")
        self.sock = socket.create_connection((str(address), self.port), self.timeout)
        if self._tls:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def is_public(text: str) -> bool:
    """Whether an address is one of the public internet; one that wraps an IPv4 address is as public as that is."""
    address: _Address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        wrapped = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if wrapped is None and address in _NAT64:
            wrapped = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_public(str(wrapped))
    return address.is_global and not address.is_multicast and not address.is_reserved


_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def _checked(url: str, allow_private: bool) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except (ValueError, AttributeError, TypeError):
        raise ConfigurationError("a webhook is a URL such as https://example.com/alerts") from None
    if parts.scheme != "https" and not (parts.scheme == "http" and allow_private):
        raise ConfigurationError("a webhook's URL begins with https:// (http:// only with allow_private)")
    if not parts.hostname or port == 0 or parts.username is not None or not url.isprintable() or " " in url:
        raise ConfigurationError("a webhook's URL names a host, and no user or password")
    return parts


def _after_fork() -> None:
    for webhook in list(_all):
        webhook._renew()


os.register_at_fork(after_in_child=_after_fork)
