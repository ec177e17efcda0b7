def pack(docs, window):
    rows, row = [], []
    queue = list(docs)
    while queue:  # now
        doc = queue[0]  # now
        if len(row) + len(doc) <= window:  # fault
            row.extend(queue.pop(0))
        elif row:  # now
            rows.append(row)
            row = []
    if row:
        rows.append(row)
    return rows
