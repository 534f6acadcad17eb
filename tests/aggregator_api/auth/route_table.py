"""Every route with its scope: any one of the scopes, then where, then whose key. A new route is a line here.

It was written from what the server answered when access was still read off the path, before any route declared it.
"""

from __future__ import annotations

TABLE = """
GET    /openapi.json                                                              anybody
HEAD   /openapi.json                                                              anybody
POST   /v1/federations                                                            operator | the server
POST   /v1/checkpoints                                                            operator | the server
GET    /v1/federations                                                            operator read | its own
GET    /v1/federations/{name}                                                     operator read | {name}
GET    /v1/federations/{name}/plan                                                operator read | {name}
PATCH  /v1/federations/{name}                                                     operator | {name}
POST   /v1/federations/{name}/pause                                               operator | {name}
POST   /v1/federations/{name}/resume                                              operator | {name}
POST   /v1/federations/{name}/stop                                                operator | {name}
DELETE /v1/federations/{name}                                                     operator | {name}
GET    /v1/federations/{name}/rounds                                              operator read | {name}
GET    /v1/federations/{name}/rounds/{number}                                     operator read | {name}
GET    /v1/federations/{name}/rounds/{number}/participants                        operator read | {name}
GET    /v1/federations/{name}/updates                                             operator read | {name}
GET    /v1/federations/{name}/metrics                                             operator read | {name}
GET    /v1/federations/{name}/devices                                             operator read | {name}
GET    /v1/federations/{name}/devices/{device}                                    operator read | {name}
GET    /v1/federations/{name}/devices/{device}/history                            operator read | {name}
GET    /v1/federations/{name}/models                                              operator read | {name}
GET    /v1/federations/{name}/models/{version}                                    operator read | {name}
DELETE /v1/federations/{name}/models/{version}                                    operator | {name}
GET    /v1/federations/{name}/aliases                                             operator read | {name}
PUT    /v1/federations/{name}/aliases/{alias}                                     operator | {name}
DELETE /v1/federations/{name}/aliases/{alias}                                     operator | {name}
POST   /v1/federations/{name}/rollouts                                            operator | {name}
GET    /v1/federations/{name}/rollouts                                            operator read | {name}
GET    /v1/federations/{name}/rollouts/{number}                                   operator read | {name}
GET    /v1/federations/{name}/rollouts/{number}/devices                           operator read | {name}
POST   /v1/federations/{name}/rollouts/{number}/pause                             operator | {name}
POST   /v1/federations/{name}/rollouts/{number}/resume                            operator | {name}
POST   /v1/federations/{name}/rollouts/{number}/halt                              operator | {name}
GET    /v1/federations/{name}/events                                              operator read | {name}
GET    /v1/federations/{name}/journal                                             operator read | {name}
POST   /v1/enrol                                                                  anybody
POST   /v1/enrol/claim                                                            anybody
POST   /v1/enrol/token                                                            anybody
GET    /v1/federations/{name}/enrolment-tokens                                    operator read | {name}
POST   /v1/federations/{name}/enrolment-tokens                                    operator | {name}
POST   /v1/federations/{name}/enrolment-tokens/{token}/revoke                     operator | {name}
POST   /v1/federations/{name}/enrolment-tokens/{token}/confirm                    operator | {name}
POST   /v1/federations/{name}/devices/{device}/approve                            operator | {name}
POST   /v1/federations/{name}/devices/{device}/revoke                             operator | {name}
POST   /v1/federations/{name}/devices/{device}/reinstate                          operator | {name}
POST   /v1/federations/{name}/devices/{device}/withdraw                           operator | {name}
PUT    /v1/federations/{name}/devices/{device}/tags                               operator | {name}
DELETE /v1/federations/{name}/devices/{device}                                    operator | {name}
GET    /v1/federations/{name}/devices/{device}/messages                           device | {name} | {device}
POST   /v1/federations/{name}/devices/{device}/status                             device | {name} | {device}
POST   /v1/federations/{name}/devices/{device}/update/{update_id}/begin           device | {name} | {device}
PUT    /v1/federations/{name}/devices/{device}/update/{update_id}/chunk/{n}       device | {name} | {device}
POST   /v1/federations/{name}/devices/{device}/update/{update_id}/end             device | {name} | {device}
GET    /v1/keys                                                                   operator | its own
POST   /v1/keys                                                                   operator | its own
POST   /v1/keys/{id}/revoke                                                       operator | its own
POST   /v1/keys/{id}/confirm                                                      operator | its own
GET    /v1/audit                                                                  operator | the server
HEAD   /v1/blobs/{sha256}                                                         operator read device | its own
GET    /v1/blobs/{sha256}                                                         operator read device | its own
GET    /healthz                                                                   anybody
GET    /readyz                                                                    anybody
GET    /metrics                                                                   operator read | the server
GET    /docs                                                                      anybody
GET    /docs/swagger-ui-bundle.js                                                 anybody
GET    /docs/swagger-ui.css                                                       anybody
GET    /docs/start.js                                                             anybody
GET    /docs/favicon-32x32.png                                                    anybody
GET    /static/{version}/{name}                                                   anybody
GET    /favicon.ico                                                               operator read | the server
GET    /phone                                                                     anybody
GET    /phone/                                                                    anybody
GET    /phone/service_worker.js                                                   anybody
GET    /phone/{wanted}/{name:path}                                                anybody
GET    /login                                                                     anybody
GET    /login/{link}                                                              anybody
POST   /login                                                                     anybody
POST   /logout                                                                    anybody
GET    /                                                                          operator read | its own
GET    /live/overview                                                             operator read | its own
GET    /audit                                                                     operator | the server
GET    /compare                                                                   operator read | its own
GET    /new-federation                                                            operator | the server
POST   /checkpoints                                                               operator | the server
POST   /new-federation/check                                                      operator | the server
POST   /new-federation                                                            operator | the server
GET    /federations/{name}/devices                                                operator read | {name}
GET    /live/federations/{name}/devices                                           operator read | {name}
GET    /federations/{name}/devices/{device}                                       operator read | {name}
GET    /live/federations/{name}/devices/{device}                                  operator read | {name}
POST   /federations/{name}/devices/{device}/approve                               operator | {name}
POST   /federations/{name}/devices/{device}/revoke                                operator | {name}
POST   /federations/{name}/devices/{device}/reinstate                             operator | {name}
POST   /federations/{name}/devices/{device}/withdraw                              operator | {name}
POST   /federations/{name}/devices/{device}/tags                                  operator | {name}
GET    /federations/{name}/rollouts                                               operator read | {name}
GET    /live/federations/{name}/rollouts                                          operator read | {name}
POST   /federations/{name}/rollouts                                               operator | {name}
GET    /federations/{name}/rollouts/{number}                                      operator read | {name}
GET    /live/federations/{name}/rollouts/{number}/rollout                         operator read | {name}
GET    /live/federations/{name}/rollouts/{number}/waves                           operator read | {name}
POST   /federations/{name}/rollouts/{number}/pause                                operator | {name}
POST   /federations/{name}/rollouts/{number}/resume                               operator | {name}
POST   /federations/{name}/rollouts/{number}/halt                                 operator | {name}
GET    /federations/{name}                                                        operator read | {name}
GET    /live/federations/{name}/{shown}                                           operator read | {name}
POST   /federations/{name}                                                        operator | {name}
GET    /federations/{name}/journal                                                operator read | {name}
GET    /federations/{name}/updates                                                operator read | {name}
GET    /federations/{name}/plan                                                   operator read | {name}
GET    /federations/{name}/plan.json                                              operator read | {name}
POST   /federations/{name}/pause                                                  operator | {name}
POST   /federations/{name}/resume                                                 operator | {name}
POST   /federations/{name}/stop                                                   operator | {name}
GET    /federations/{name}/enrolment                                              operator read | {name}
POST   /federations/{name}/enrolment-tokens                                       operator | {name}
POST   /federations/{name}/enrolment-tokens/{token}/revoke                        operator | {name}
POST   /federations/{name}/enrolment-tokens/{token}/confirm                       operator | {name}
GET    /federations/{name}/models                                                 operator read | {name}
GET    /federations/{name}/models/{version}/checkpoint                            operator read | {name}
GET    /federations/{name}/models/{version}/promote                               operator read | {name}
GET    /federations/{name}/models/{version}/roll-out                              operator read | {name}
GET    /federations/{name}/models/{version}/roll-back                             operator read | {name}
GET    /federations/{name}/models/{version}/onnx                                  operator read | {name}
POST   /federations/{name}/aliases                                                operator | {name}
POST   /federations/{name}/aliases/{alias}/delete                                 operator | {name}
GET    /events                                                                    operator read | its own
GET    /federations/{name}/events                                                 operator read | {name}
"""


def rows(table: str) -> dict[tuple[str, str], str]:
    """Return what is needed by method and path."""
    split = (line.split(maxsplit=2) for line in table.strip().splitlines())
    return {(method, path): needed for method, path, needed in split}


ROUTES = rows(TABLE)
OPEN = frozenset(path for (_, path), needed in ROUTES.items() if needed == "anybody")
DEVICE_MESSAGES = frozenset(path for (_, path), needed in ROUTES.items() if needed.startswith("device |"))
