def flip(x):
    return x.flip(-1)
