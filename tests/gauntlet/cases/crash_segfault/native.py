import ctypes


def checksum(data, address=None):
    buffer = ctypes.create_string_buffer(data)
    where = ctypes.addressof(buffer) if address is None else address
    return sum(ctypes.string_at(where, len(data)))  # fault
