def jitter(x):
    return x + 0.1
