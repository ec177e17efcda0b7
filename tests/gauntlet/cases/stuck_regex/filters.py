import re

WORDS = re.compile(r"^(\w+\s?)*$")


def is_clean(line):
    return WORDS.match(line) is not None  # fault
