"""The messages of NVRx and of NVSentinel as their own .proto files number the fields, for the tests to read and write."""

from __future__ import annotations

from typing import Any

from tests.support.optional_modules import imported

descriptor_pb2: Any = imported("google.protobuf.descriptor_pb2")
descriptor_pool: Any = imported("google.protobuf.descriptor_pool")
message_factory: Any = imported("google.protobuf.message_factory")

BOOL, INT32, UINT32, INT64, STRING, MESSAGE = 8, 5, 13, 3, 9, 11
"""Types of fields."""
Field = tuple[int, str, int] | tuple[int, str, int, str]
MESSAGES: dict[str, list[Field]] = {
    "HealthCheckRequest": [(1, "*args", STRING)],
    "HealthCheckResponse": [(1, "success", BOOL), (2, "exit_code", INT32), (3, "output", STRING), (4, "error", STRING)],
    "Timestamp": [(1, "seconds", INT64), (2, "nanos", INT32)],
    "HealthEvent": [
        (1, "version", UINT32),
        (2, "agent", STRING),
        (3, "componentClass", STRING),
        (4, "checkName", STRING),
        (5, "isFatal", BOOL),
        (6, "isHealthy", BOOL),
        (7, "message", STRING),
        (8, "recommendedAction", INT32),
        (9, "*errorCode", STRING),
        (12, "generatedTimestamp", MESSAGE, "Timestamp"),
        (13, "nodeName", STRING),
        (16, "processingStrategy", INT32),
    ],
    "HealthEvents": [(1, "version", UINT32), (2, "*events", MESSAGE, "HealthEvent")],
}


def message_classes() -> dict[str, Any]:
    """A class of protobuf's own for each message, by its name."""
    file = descriptor_pb2.FileDescriptorProto(name="messages.proto", package="told", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, label, kind, *of in fields:
            field = message.field.add(name=label.lstrip("*"), number=number, type=kind)
            field.label = 3 if label.startswith("*") else 1
            if of:
                field.type_name = f".told.{of[0]}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"told.{name}")) for name in MESSAGES}
