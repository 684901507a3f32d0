"""Resources and messages of web services."""

from tests.schemas.building import Schema, formatted, listed, one_of, pattern, record, whole, words

_USER = record({"login": words(10), "id": whole(1)})

_CONTAINER = record(
    {
        "name": pattern("^[a-z]([a-z0-9-]{0,8}[a-z0-9])?$"),
        "image": pattern("^[a-z]{1,8}:[0-9]\\.[0-9]{1,2}$"),
        "ports": listed(record({"containerPort": whole(1, 65535)})),
        "imagePullPolicy": one_of("Always", "Never", "IfNotPresent"),
    },
    optional=("ports", "imagePullPolicy"),
)

_BLOCK = {
    "oneOf": [
        record({"type": {"const": "divider"}}),
        record({"type": {"const": "header"}, "text": words(10)}),
        record({"type": {"const": "image"}, "image_url": words(16), "alt_text": words(8)}),
    ],
    "discriminator": {"propertyName": "type"},
}

APIS: dict[str, Schema] = {
    "github issue": record(
        {
            "number": whole(1),
            "title": words(24, minLength=1),
            "state": one_of("open", "closed"),
            "state_reason": one_of("completed", "reopened", "not_planned", None),
            "locked": {"type": "boolean"},
            "user": {"anyOf": [_USER, {"type": "null"}]},
            "labels": listed(record({"name": words(8), "color": pattern("^[0-9a-f]{6}$")})),
            "created_at": formatted("date-time"),
        }
    ),
    "stripe charge": record(
        {
            "id": pattern("^ch_[A-Za-z0-9]{8}$"),
            "object": {"const": "charge"},
            "amount": whole(0, 99_999_999),
            "currency": one_of("usd", "eur", "gbp", "jpy"),
            "captured": {"type": "boolean"},
            "description": {"type": ["string", "null"], "maxLength": 16},
            "metadata": {
                "type": "object",
                "additionalProperties": words(8),
                "propertyNames": {"pattern": "^[a-z_]{1,8}$"},
                "maxProperties": 2,
            },
        }
    ),
    "calendar event": record(
        {
            "summary": words(16),
            "start": record({"dateTime": formatted("date-time"), "timeZone": words(12)}),
            "end": record({"date": formatted("date")}),
            "attendees": listed(
                record(
                    {"email": formatted("email"), "responseStatus": one_of("accepted", "declined")}
                ),
                1,
            ),
            "visibility": {"type": "string", "enum": ["default", "public", "private"]},
        },
        optional=("attendees", "visibility"),
    ),
    "kubernetes pod": record(
        {
            "apiVersion": {"const": "v1"},
            "kind": {"const": "Pod"},
            "metadata": record(
                {
                    "name": pattern("^[a-z0-9]{1,10}$"),
                    "labels": {"type": "object", "additionalProperties": words(6)},
                },
                optional=("labels",),
            ),
            "spec": record(
                {
                    "containers": listed(_CONTAINER, 2, 1),
                    "restartPolicy": one_of("Always", "OnFailure", "Never"),
                }
            ),
        }
    ),
    "problem details": record(
        {
            "type": formatted("uri"),
            "title": words(),
            "status": whole(100, 599),
            "detail": words(20),
            "instance": pattern("^/[a-z]{1,6}/[0-9]{1,4}$"),
        },
        optional=("detail", "instance"),
    ),
    "slack message": record(
        {
            "channel": pattern("^[CDG][A-Z0-9]{8}$"),
            "text": words(20),
            "blocks": listed(_BLOCK),
            "thread_ts": pattern("^[0-9]{10}\\.[0-9]{6}$"),
        },
        optional=("thread_ts",),
    ),
    "shipment": record(
        {
            "tracking_number": pattern("^1Z[0-9A-Z]{8}$"),
            "carrier": one_of("ups", "fedex", "dhl"),
            "weight": {"type": "number", "exclusiveMinimum": 0, "maximum": 70},
            "events": listed(
                record({"status": one_of("in_transit", "delivered"), "at": formatted("date")})
            ),
        }
    ),
    "weather": record(
        {
            "city": words(),
            "temperature": {"type": "number", "minimum": -90, "maximum": 60},
            "humidity": whole(0, 100),
            "wind": record({"speed": whole(0, 120), "direction": one_of("N", "E", "S", "W")}),
        }
    ),
    "profile": record(
        {
            "id": formatted("uuid"),
            "email": formatted("email"),
            "birthday": formatted("date"),
            "name": {"type": "object", "properties": {"first": words(8), "last": words(8)}}
            | {"required": ["first", "last"], "additionalProperties": False},
            "roles": {"type": "array", "items": one_of("admin", "user"), "maxItems": 2},
        }
    ),
    "oauth token": record(
        {
            "access_token": pattern("^[A-Za-z0-9_-]{16}$"),
            "token_type": one_of("Bearer", "bearer"),
            "expires_in": whole(0, 86_400),
            "scope": pattern("^[a-z]{1,6}( [a-z]{1,6}){0,2}$"),
            "refresh_token": words(10),
        },
        optional=("refresh_token", "scope"),
    ),
    "dns record": {
        "type": "object",
        "required": ["name", "ttl", "data"],
        "additionalProperties": False,
        "properties": {
            "name": pattern("^([a-z]{1,6}\\.){1,2}(com|org)$"),
            "ttl": {"type": "integer", "multipleOf": 60, "minimum": 60, "maximum": 3600},
            "data": {
                "anyOf": [
                    record({"a": formatted("ipv4")}),
                    record({"mx": words(8), "priority": whole(0, 50)}),
                    record({"txt": listed(words(8), 2, 1)}),
                ]
            },
        },
    },
    "json rpc": record(
        {
            "jsonrpc": {"const": "2.0"},
            "id": {"anyOf": [whole(0, 99), words(6), {"type": "null"}]},
            "method": pattern("^[a-z]{1,6}/[a-z]{1,6}$"),
            "params": {"type": "array", "items": {"type": ["integer", "boolean"]}, "maxItems": 3},
        },
        optional=("id", "params"),
    ),
    "json patch": {
        "type": "array",
        "minItems": 1,
        "maxItems": 2,
        "items": {
            "oneOf": [
                record({"op": one_of("add", "replace"), "path": words(8), "value": whole(0, 9)}),
                record({"op": {"const": "remove"}, "path": words(8)}),
                record({"op": one_of("move", "copy"), "path": words(8), "from": words(8)}),
            ]
        },
    },
    "refund": record(
        {
            "amount": {"type": "string", "pattern": "^[0-9]{1,5}\\.[0-9]{2}$"},
            "reason": {"type": ["string", "null"], "enum": ["duplicate", "fraudulent", None]},
            "charge": {"type": "string", "minLength": 4, "maxLength": 8},
            "created": {"type": "integer", "minimum": 1_600_000_000, "maximum": 1_999_999_999},
        }
    ),
}
