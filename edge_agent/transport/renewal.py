"""Renews a running device's credentials: reread at every connection, and claimed again when rejected.

The operator may rotate passwords and keys, and recreate the broker, while devices run. Whoever is refused reads its
files again; where they hold nothing newer, a device that has enrolled claims new credentials with its own key. It asks
seldom: at first within ten seconds, by chance, so that a fleet that was refused at once does not ask at once; then
after waits that double to an hour, and every six hours or so where the server has revoked it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from edge_agent.config.settings import Config
from edge_agent.errors import ConfigError, EnrolError, RevokedError
from edge_agent.storage.credentials import Credentials, Login, has_key, key_of, login, read_credentials
from edge_agent.transport.enrolment import Applicant, EnrolmentAnswer, claim

log = logging.getLogger(__name__)

FIRST_S, MAX_WAIT_S, REVOKED_S = 10.0, 3600.0, 6 * 3600.0


class CredentialRenewal:
    """What a device introduces itself with; safe on any thread."""

    def __init__(
        self,
        config: Config,
        ask: Callable[[Applicant], EnrolmentAnswer] = claim,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._ask, self._clock = config, ask, clock
        self._lock = threading.Lock()
        self._wait_s, self._due_at = FIRST_S, -MAX_WAIT_S
        self._was_taken = True
        self.claim_problem = ""

    def login(self) -> Login:
        """Read how the device introduces itself to the broker.

        Raises:
            ConfigError: if a file cannot be read.
        """
        return login(self._config.broker, self._known(), self._config.agent.device)

    def api_key(self) -> str | None:
        """Read the key for the server; None for a device that has neither enrolled nor been given one.

        Raises:
            ConfigError: if a file cannot be read.
        """
        known = self._known()
        return known.api_key if known else key_of(self._config.server.key_file)

    def taken(self) -> None:
        """Note that the broker took what the files hold: the next refusal is a new one."""
        self._was_taken, self.claim_problem = True, ""

    def login_refused(self, who: Login) -> bool:
        """Say whether another try at the broker is worth while; it may be called often.

        It is if the files hold something else than `who` by now, or the server has just given new credentials.
        """
        return self._refused(lambda: self.login() != who, claims=self._config.broker.username is None)

    def key_refused(self, key: str | None) -> bool:
        """Say whether another try at the server is worth while, as `login_refused` does."""
        return self._refused(lambda: self.api_key() != key, claims=True)

    def _refused(self, is_another: Callable[[], bool], *, claims: bool) -> bool:
        with self._lock:  # a download and the broker may be refused at once
            try:
                if is_another():
                    return True
                return claims and has_key(self._config.agent.data_dir) and self._is_due() and self._claimed()
            except ConfigError as error:
                self.claim_problem = str(error)
                return False

    def _known(self) -> Credentials | None:
        return read_credentials(self._config.agent.data_dir)

    def _is_due(self) -> bool:
        now = self._clock()
        if self._was_taken:
            self._was_taken = False
            if now - self._due_at > MAX_WAIT_S:  # else somebody else claims as well: the waits go on growing
                self._wait_s = FIRST_S
            self._due_at = max(self._due_at, now + random.uniform(0, FIRST_S))
        return now >= self._due_at

    def _claimed(self) -> bool:
        try:
            answer = self._ask(Applicant.of(self._config))
        except EnrolError as error:
            self._wait_s = REVOKED_S if isinstance(error, RevokedError) else min(MAX_WAIT_S, 2 * self._wait_s)
            self.claim_problem = str(error)
        else:
            self._wait_s = min(MAX_WAIT_S, 2 * self._wait_s)
            self.claim_problem = "" if answer.credentials else "the operator has not approved this device again yet"
        wait_s = random.uniform(self._wait_s / 2, self._wait_s)
        self._due_at = self._clock() + wait_s
        if self.claim_problem:
            log.warning("%s; retrying in %.0f s", self.claim_problem, wait_s)
            return False
        log.info("credentials renewed: the previous ones were refused")
        return True
