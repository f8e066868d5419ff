"""Runs on the driver. The messages of the Open Inference Protocol's gRPC API, and of health checks.

They are made from the table below, as no package brings them without a client of Triton. The pool
of descriptors is our own, so that such a client can be in the same process.

Sources: https://github.com/kserve/open-inference-protocol (`open_inference_grpc.proto`), its
extension by https://github.com/triton-inference-server/common (`grpc_service.proto`) and
https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import functools
from typing import Any

_PACKAGE = "sparkdl.inference"
# A message and its fields: type, name and number. Fields are optional, those of proto2 as well,
# because only these tell a field without a value from one with zero.
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready 1",
    "ModelReadyRequest": "string name 1, string version 2",
    "ModelReadyResponse": "bool ready 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name 1, string version 2, string* extensions 3",
    "ModelMetadataRequest": "string name 1, string version 2",
    "TensorMetadata": "string name 1, string datatype 2, int64* shape 3",
    "ModelMetadataResponse": (
        "string name 1, string* versions 2, string platform 3, TensorMetadata* inputs 4, "
        "TensorMetadata* outputs 5"
    ),
    "InferParameter": (
        "bool bool_param 1, int64 int64_param 2, string string_param 3, double double_param 4, "
        "uint64 uint64_param 5"
    ),
    "Parameter": "string key 1, InferParameter value 2",
    "InferTensorContents": (
        "bool* bool_contents 1, int32* int_contents 2, int64* int64_contents 3, "
        "uint32* uint_contents 4, uint64* uint64_contents 5, float* fp32_contents 6, "
        "double* fp64_contents 7, bytes* bytes_contents 8"
    ),
    "InferTensor": (
        "string name 1, string datatype 2, int64* shape 3, Parameter* parameters 4, "
        "InferTensorContents contents 5"
    ),
    "InferRequestedOutputTensor": "string name 1, Parameter* parameters 2",
    "ModelInferRequest": (
        "string model_name 1, string model_version 2, string id 3, Parameter* parameters 4, "
        "InferTensor* inputs 5, InferRequestedOutputTensor* outputs 6, bytes* raw_input_contents 7"
    ),
    "ModelInferResponse": (
        "string model_name 1, string model_version 2, string id 3, Parameter* parameters 4, "
        "InferTensor* outputs 5, bytes* raw_output_contents 6"
    ),
    "RepositoryIndexRequest": "string repository_name 1, bool ready 2",
    "ModelIndex": "string name 1, string version 2, string state 3, string reason 4",
    "RepositoryIndexResponse": "ModelIndex* models 1",
    # Of grpc.health.v1; the status is an enumeration.
    "HealthCheckRequest": "string service 1",
    "HealthCheckResponse": "int32 status 1",
}


@functools.cache
def message_class(name: str) -> Any:
    """Return the class of a message.

    Example:
        >>> message_class("ServerLiveResponse")(live=True).SerializeToString()
        b'\\x08\\x01'
    """
    from google.protobuf import message_factory

    descriptor = _pool().FindMessageTypeByName(f"{_PACKAGE}.{name}")
    return message_factory.GetMessageClass(descriptor)


@functools.cache
def _pool() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="sparkdl/inference.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in filter(None, fields.split(", ")):
            kind, field_name, number = field.split()
            single = kind.removesuffix("*")
            added = message.field.add(name=field_name, number=int(number))
            added.label = kinds.LABEL_OPTIONAL if single == kind else kinds.LABEL_REPEATED
            if single in _MESSAGES:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{single}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{single.upper()}")
                added.options.packed = single != kind and single not in ("string", "bytes")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool
