"""The reports of `rankwise weights inspect` and `convert` as text."""

from __future__ import annotations

from typing import Any

from rankwise.report.safe_text import one_line
from rankwise.sizes import bytes_text

_SHOWN = 40  # tensors of one set of weights, unless all are wanted


def weights_text(facts: dict[str, Any], *, show_all: bool, width: int) -> str:
    """A checkpoint: what it is, its files, then each set of weights as a table."""
    size = sum(file["bytes"] for file in facts["files"])
    files = f"{len(facts['files'])} file{'s' * (len(facts['files']) != 1)}, {bytes_text(size)}"
    lines = [f"{one_line(facts['path'])}  {files}", f"looks like   {', '.join(map(one_line, facts['looks_like']))}"]
    if facts["top_level"]:
        lines.append("top level    " + one_line(", ".join(f"{key}: {text}" for key, text in facts["top_level"].items()), width * 2))
    lines += [f"note         {one_line(note)}" for note in facts["notes"]]
    if "verified_bytes" in facts:
        lines.append(f"verified     {bytes_text(facts['verified_bytes'])} agree with their checksums")
    for weights in facts["weights"]:
        lines += ["", *_weights_lines(weights, show_all, width)]
    return "\n".join(lines)


def _weights_lines(weights: dict[str, Any], show_all: bool, width: int) -> list[str]:
    count = len(weights["tensors"])
    tensors = weights["tensors"] if show_all else weights["tensors"][: 0 if weights["kind"] == "training state" else _SHOWN]
    head = f"{one_line(weights['key']) or 'the whole file'}: {weights['kind']}, {count} tensor{'s' * (count != 1)}, "
    lines = [f"{head}{weights['parameters']:,} numbers, {bytes_text(weights['bytes'])}"]
    lines += [f"  prefix {prefix!r} in {found} of {count} names" for prefix, found in weights["prefixes"].items()]
    rows = [
        (one_line(t["name"], 120), t["dtype"], "×".join(map(str, t["shape"])) or "scalar", bytes_text(t["bytes"]), _remark(t))
        for t in tensors
    ]
    columns = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    columns[0] = min(columns[0], max(20, width - sum(columns[1:]) - 12))
    lines += [
        f"  {name:<{columns[0]}}  {dtype:<{columns[1]}}  {shape:<{columns[2]}}  {size:>{columns[3]}}{remark}".rstrip()
        for name, dtype, shape, size, remark in rows
    ]
    return lines + ([f"  and {count - len(tensors):,} more; --all shows them"] if count > len(tensors) else [])


def _remark(tensor: dict[str, Any]) -> str:
    if "same_as" in tensor:
        return f"  same as {one_line(tensor['same_as'], 120)}"
    return f"  {one_line(tensor['unreadable'], 120)}" if "unreadable" in tensor else ""


def converted_text(facts: dict[str, Any]) -> str:
    """What was written, that it computes the same, and how fast both are."""
    lines = [f"{one_line(facts['output'])}  {bytes_text(facts['nbytes'])}"]
    if "program_ms" in facts:
        lines.append(f"outputs agree: largest relative difference {facts['largest_difference']:.2g}")
        lines.append(f"one call: model {facts['model_ms']:.3f} ms, program {facts['program_ms']:.3f} ms")
        return "\n".join(lines)
    removed = "".join(f", without {prefix!r}" for prefix in facts["removed_prefixes"])
    lines.append(f"{facts['tensors']} tensors{removed}; read back and compared bit by bit")
    lines += [
        f"{one_line(name)} is the same tensor as {one_line(kept)} and was written once" for name, kept in facts["same_tensor"].items()
    ]
    lines.append(f"reading all of it: before {facts['read_s']:.3f} s, now {facts['written_read_s']:.3f} s")
    if "outputs" in facts:
        outputs = facts["outputs"]
        lines.append(f"outputs agree: largest relative difference {outputs['largest_difference']:.2g}")
        lines.append(f"loading into the model: before {outputs['load_s']:.3f} s, now {outputs['converted_load_s']:.3f} s")
    return "\n".join(lines)
