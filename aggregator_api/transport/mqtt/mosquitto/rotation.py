"""New passwords for the server's own accounts, without a moment in which neither the old nor the new one is known."""

from __future__ import annotations

from pathlib import Path

from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import load
from aggregator_api.transport.mqtt.mosquitto import roles
from aggregator_api.transport.mqtt.mosquitto.accounts import new_password
from aggregator_api.transport.mqtt.mosquitto.dynamic_security import DynamicSecurity
from aggregator_api.transport.mqtt.mosquitto.folders import SECRET
from gaitway.files import write_file


def rotate(folder: Path) -> None:
    """Change the passwords of both accounts that `server.toml` in the folder names.

    The server's role gets the rules of this version. A new password lies in `<file>.next` before the broker gets it,
    and replaces the file afterwards.

    Raises:
        ConfigError: if the settings name no accounts.
        BrokerError: if the broker cannot be reached or refuses.
    """
    settings = load(folder / "server.toml")
    admin = settings.broker_admin_login
    if admin is None or settings.mqtt_username is None:
        raise ConfigError(f"{folder / 'server.toml'} names no accounts; write it with broker-config")
    broker = (settings.broker_host, settings.broker_port)
    DynamicSecurity(*broker, admin).set_role(roles.SERVER_ROLE, roles.server_role())
    _change(DynamicSecurity(*broker, admin), settings.mqtt_username, folder / "mqtt_password")
    _change(DynamicSecurity(*broker, admin), str(admin.username), folder / "broker_admin_password")


def _change(broker: DynamicSecurity, username: str, file: Path) -> None:
    password = new_password()
    following = file.with_name(f"{file.name}.next")
    write_file(following, password.encode(), mode=SECRET)
    broker.set_password(username, password)
    following.replace(file)
