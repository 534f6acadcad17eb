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
        "Set new passwords for the server's two accounts at the running broker, and write them down; then restart it.",
    ),
    "server-certificate": (
        "broker:server_certificate",
        "Write a certificate for HTTPS in `serve`, signed by the installation's authority.",
    ),
    "backup": (
        "storage:backup",
        "Back up a server, which may be running, into a folder that `restore` reads.",
    ),
    "restore": (
        "storage:restore",
        "Restore a server from a backup into an empty folder (and, on PostgreSQL, an empty database).",
    ),
    "fsck": (
        "storage:fsck",
        "Check the database, every blob that it needs, open rounds and partial uploads; exit with 1 if there are "
        "problems.",
    ),
    "new-epoch": (
        "storage:new_epoch",
        "Begin a new epoch after a database was restored without `restore`, such as by pg_restore or from a snapshot.",
    ),
    "login-link": (
        "keys:login_link",
        "Print a link that logs one browser of this machine in to the operator's pages, once, without showing a key.",
    ),
    "new-ledger": (
        "storage:new_ledger",
        "Begin a new ledger of revocations when the old one is lost and the database is current, not a copy.",
    ),
    "serve": (
        "serve:serve",
        "Run the server until SIGTERM or Ctrl-C; it resumes where it stopped, and waits for its broker.",
    ),
    "broker": (
        "serve:broker",
        "Run a small MQTT broker for demos and tests: anonymous, in memory; production uses Mosquitto.",
    ),
    "migrate": ("serve:migrate", "Migrate the database to this program's schema; `serve` does this too."),
    "gc": (
        "serve:gc",
        "Remove unreferenced blobs that are older than `gc_grace_s`; the server does this too.",
    ),
    "openapi": ("serve:openapi", "Print the OpenAPI document of the REST interface, identical to docs/openapi.json."),
    "asyncapi": (
        "serve:asyncapi",
        "Print the AsyncAPI document of the devices' protocol, identical to docs/asyncapi.json.",
    ),
    "keys": ("keys:keys_app", "API keys of the server."),
    "tokens": ("keys:tokens_app", "One-time tokens that let devices enrol."),
    "audit": ("audit:audit_app", "The append-only audit log: who did what, from where and when."),
    "notify": (
        "audit:notify_app",
        "Notify the operator of what needs attention, by webhook and e-mail.",
    ),
    "devices": ("devices:app", "List, approve, remove and group devices of federations."),
    "federations": ("federations:federations_app", "List, create and delete federations."),
    "retention": (
        "storage:retention_app",
        "Delete old data by keep_versions, update_retention_days and event_retention_days.",
    ),
    "rollouts": ("rollouts:app", "Release a model version to devices, wave by wave."),
    "versions": ("storage:versions_app", "List a federation's model versions, and delete old ones."),
    "vouch": ("keys:vouch_app", "Vouch for the devices in secure sums with a key that the server doesn't have."),
}
"""Each command's location and purpose."""

app = CommandLine(rich_markup_mode="markdown")
app.later("aggregator_api.cli", COMMANDS, endless=("serve", "broker"))


@app.callback()
def program() -> None:
    """Run the server of federations: REST to the operator, MQTT to the devices."""
    keep_private()
