def tokenise(n):
    vocabulary, ids = {}, []
    for i in range(n):  # now
        word = str(i * 7919 % 10007)  # fault
        ids.append(vocabulary.setdefault(word, len(vocabulary)))  # now
        if len(ids) > 1000:  # now
            ids.clear()  # now
    return ids
