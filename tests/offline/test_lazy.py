"""pyarrow is wanted only by those who run a job, and its absence is a finding that says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.offline.inputs import write

WITHOUT = "import sys; sys.modules['pyarrow'] = None; from rankwise.cli.main import main; sys.exit(main(sys.argv[1:]))"


def test_a_job_without_pyarrow_says_what_to_install(tmp_path: Path) -> None:
    path, _ = write(tmp_path, "npy", 4)
    words = ["predict", "--build", "tests.offline.nets:build", "--input", str(path), "--output", str(tmp_path / "y.npy")]

    done = subprocess.run([sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, timeout=120)

    assert done.returncode == 2 and 'pip install "rankwise[predict]"' in done.stderr + done.stdout
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_room_is_imported_without_pyarrow_and_torch() -> None:
    code = "import sys, rankwise.offline.running, rankwise.offline.format as f; f._by_suffix()"
    code += "; print('pyarrow' in sys.modules, 'torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120).stdout == "False False\n"
