"""RetryInfo in a status, against protobuf's own parser and against garbage."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from acceptd.retry_info import STATUS_DETAILS_KEY, encode_retry_info, retry_after


def _messages():
    """google.rpc's Status and RetryInfo from their published definitions, built by protobuf."""
    file = descriptor_pb2.FileDescriptorProto(
        name="test_rpc.proto",
        package="google.rpc",
        syntax="proto3",
        dependency=["google/protobuf/any.proto", "google/protobuf/duration.proto"],
    )
    field = descriptor_pb2.FieldDescriptorProto
    status = file.message_type.add(name="Status")
    status.field.add(name="code", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    status.field.add(name="message", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    status.field.add(
        name="details",
        number=3,
        type=field.TYPE_MESSAGE,
        type_name=".google.protobuf.Any",
        label=field.LABEL_REPEATED,
    )
    info = file.message_type.add(name="RetryInfo")
    info.field.add(
        name="retry_delay",
        number=1,
        type=field.TYPE_MESSAGE,
        type_name=".google.protobuf.Duration",
        label=field.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"google.rpc.{n}")) for n in ("Status", "RetryInfo")
    ]


STATUS, RETRY_INFO = _messages()


@pytest.mark.parametrize("seconds", [0.0, 0.001, 2.5, 3600.0])
def test_protobuf_reads_what_we_write(seconds):
    status = STATUS.FromString(encode_retry_info(8, "tröuble " * 30, seconds))
    assert status.code == 8
    assert status.message == "tröuble " * 30
    info = RETRY_INFO()
    assert status.details[0].Unpack(info)
    assert info.retry_delay.ToTimedelta().total_seconds() == pytest.approx(seconds)


@given(st.floats(0, 1e6), st.text(max_size=200))
def test_we_read_what_protobuf_writes(seconds, message):
    status = STATUS(code=8, message=message)
    other = status.details.add()
    other.Pack(STATUS(code=1))
    info = RETRY_INFO()
    info.retry_delay.FromNanoseconds(round(seconds * 1e9))
    status.details.add().Pack(info)
    metadata = [("other", "x"), (STATUS_DETAILS_KEY, status.SerializeToString())]
    assert retry_after(metadata) == pytest.approx(seconds, abs=1e-9)


@given(st.binary(max_size=100))
def test_garbage_says_nothing(data):
    assert retry_after([(STATUS_DETAILS_KEY, data)]) is None


def test_a_negative_delay_and_none_at_all_say_nothing():
    info = RETRY_INFO()
    info.retry_delay.FromNanoseconds(-1_000_000_000)
    status = STATUS(code=8)
    status.details.add().Pack(info)
    assert retry_after([(STATUS_DETAILS_KEY, status.SerializeToString())]) is None
    assert retry_after([(STATUS_DETAILS_KEY, STATUS(code=8).SerializeToString())]) is None
    assert retry_after([]) is None
    assert retry_after(None) is None


def test_fields_of_other_types_and_another_prefix_of_the_type_are_passed_over():
    """A later google.rpc.Status may have more fields, and who packs an Any chooses what stands before the slash."""
    status = STATUS(code=8)
    info = RETRY_INFO()
    info.retry_delay.FromNanoseconds(2_500_000_000)
    detail = status.details.add(type_url="example.com/google.rpc.RetryInfo", value=info.SerializeToString())
    assert detail.Is(RETRY_INFO.DESCRIPTOR)
    fixed32, fixed64, varint = b"\x7d" + bytes(4), b"\x79" + bytes(8), b"\x78\x01"
    data = fixed64 + varint + fixed32 + status.SerializeToString()
    assert STATUS.FromString(data).code == 8
    assert retry_after([(STATUS_DETAILS_KEY, data)]) == 2.5
