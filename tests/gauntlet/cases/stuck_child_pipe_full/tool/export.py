import subprocess


def export(rows):
    child = subprocess.Popen(["seq", str(rows)], stdout=subprocess.PIPE)
    code = child.wait()  # fault
    if code:
        raise RuntimeError(f"export failed: {code}")
    return child.stdout.read().count(b"\n")
