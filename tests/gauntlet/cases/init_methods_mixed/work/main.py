import sys

from work.comm import start
from work.task import count

if __name__ == "__main__":
    start(sys.argv[1])
    count()
