import os
import subprocess
import sys

port = os.environ["GAUNTLET_PORT"]
ranks = [
    subprocess.Popen([sys.executable, "chunks.py", "--rank", str(r), "--init", f"tcp://localhost:{port}"])
    for r in range(2)
]
codes = [p.wait() for p in ranks]
sys.exit(1 if any(codes) else 0)
