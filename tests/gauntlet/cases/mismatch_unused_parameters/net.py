from torch import nn


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.document = nn.Linear(8, 8)
        self.bridge = nn.Linear(8, 8)  # fault

    def forward(self, q, d):
        q, d = self.query(q), self.document(d)
        self.bridge(q)
        return (q * d).sum(-1)
