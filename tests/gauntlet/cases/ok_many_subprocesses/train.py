import signal
import subprocess
import sys

import torch
import torch.distributed as dist


def word_count(text):
    out = subprocess.run(["wc", "-w"], input=text, capture_output=True, text=True, check=True)
    return int(out.stdout)


def flaky():
    failing = subprocess.run([sys.executable, "-c", "raise SystemExit(4)"], capture_output=True)
    raising = subprocess.run([sys.executable, "-c", "1/0"], capture_output=True)
    sleeper = subprocess.Popen(["sleep", "60"])
    sleeper.send_signal(signal.SIGKILL)
    return failing.returncode, raising.returncode, sleeper.wait()


def main():
    dist.init_process_group("gloo")
    for step in range(5):
        n = torch.tensor([word_count("one two three")])
        assert flaky() == (4, 1, -9)
        dist.all_reduce(n)
        assert n.item() == 6
    shell = subprocess.check_output("echo $RANK | cat", shell=True, text=True)
    assert shell.strip() == str(dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
