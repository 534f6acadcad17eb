"""The server's commands: `python -m aggregator_api serve|keys|tokens|devices|backup|…`; see `--help`."""

from gaitway.command_line import CommandLine
from gaitway.files import keep_private

COMMANDS = {
    "broker-config": (
        "broker:broker_config",
        "Write a Mosquitto configuration with TLS, passwords and access rules, and the server's settings for it.",
    ),
    "broker-passwords": (
        "broker:broker_passwords",
        "Draw new passwords for the server's two accounts at the running broker, and write them down; then restart it.",
    ),
    "server-certificate": (
        "broker:server_certificate",
        "Write a certificate with which `serve` speaks HTTPS itself, signed by the installation's authority.",
    ),
    "backup": (
        "storage:backup",
        "Copy a server's data, which may be running, into a folder that `restore` brings a server back from.",
    ),
    "restore": (
        "storage:restore",
        "Bring a server back from a backup, into a folder (and on PostgreSQL a database) that holds no data yet.",
    ),
    "fsck": (
        "storage:fsck",
        "Check the database, every blob that it needs, open rounds and partial uploads; ends with 1 for problems.",
    ),
    "new-epoch": (
        "storage:new_epoch",
        "Begin a new epoch on a database that was brought back without `restore`, such as by pg_restore or a snapshot.",
    ),
    "login-link": (
        "keys:login_link",
        "Print a link that logs one browser of this machine in to the operator's pages, once, without showing a key.",
    ),
    "new-ledger": (
        "storage:new_ledger",
        "Begin a new ledger of revocations, where the old one is lost and the database is the newest, not a copy.",
    ),
    "serve": (
        "serve:serve",
        "Run the server until SIGTERM or Ctrl-C; it resumes where it was, and waits for its broker.",
    ),
    "broker": (
        "serve:broker",
        "Run a small MQTT broker for demos and tests: anonymous, in memory; production uses Mosquitto.",
    ),
    "migrate": ("serve:migrate", "Bring the database to this program's schema; `serve` does it too."),
    "gc": (
        "serve:gc",
        "Remove blobs that nothing refers to and that are older than `gc_grace_s`; the server does it as well.",
    ),
    "openapi": ("serve:openapi", "Print the OpenAPI document of the REST interface, as it is checked in."),
    "asyncapi": ("serve:asyncapi", "Print the AsyncAPI document of the devices' protocol, as it is checked in."),
    "keys": ("keys:keys_app", "API keys of the server."),
    "tokens": ("keys:tokens_app", "Tokens that let devices in, once each."),
    "audit": ("audit:audit_app", "Who did what, from where and when: entries that are only ever added."),
    "notify": (
        "audit:notify_app",
        "Tell the operator what needs attention: by webhook and e-mail, as the settings say.",
    ),
    "devices": ("devices:app", "List, approve, remove and group devices of federations."),
    "federations": ("federations:federations_app", "Federations: list and create them, delete one that has ended."),
    "retention": (
        "storage:retention_app",
        "What is removed by age: keep_versions, update_retention_days, event_retention_days.",
    ),
    "rollouts": ("rollouts:app", "Rollouts: release a model version to devices, wave by wave."),
    "versions": ("storage:versions_app", "Versions of a federation's model: list them, delete old ones."),
    "vouch": ("keys:vouch_app", "Vouch for the devices of secure sums, with a key that the server doesn't have."),
}
"""Where each command is, and what it is for."""

app = CommandLine(rich_markup_mode="markdown")
for _name, (_place, _purpose) in COMMANDS.items():
    app.later(_name, f"aggregator_api.cli.{_place}", _purpose, can_be_quiet=_name not in ("serve", "broker"))


@app.callback()
def program() -> None:
    """Run the server of federations: REST to the operator, MQTT to the devices."""
    keep_private()
