import hashlib


def derive(password, rounds):
    rounds = min(rounds, 2**31 - 1)
    return hashlib.pbkdf2_hmac("sha512", password.encode(), b"salt", rounds)  # fault
