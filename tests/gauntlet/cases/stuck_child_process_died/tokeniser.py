def serve(table, out):
    for letter in "abcdefgh":
        out.put([table[letter]] * 4)
